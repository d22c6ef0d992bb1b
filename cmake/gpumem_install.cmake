# Installs the library, the sources of its modules (an importing project compiles them again) and the package files.
# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
set(gpumem_package "${CMAKE_INSTALL_LIBDIR}/cmake/gpumem")
set(gpumem_simulator_folder "${CMAKE_INSTALL_LIBDIR}/gpumem")

# The modules are installed by modules/CMakeLists.txt: called here, CMake 3.31 would not find the folder to which it
# installs the interfaces, and would write the folder of their sources into the package. No report is known.
install(TARGETS gpumem_simulator EXPORT gpumem
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT gpumem NAMESPACE gpumem:: FILE gpumemTargets.cmake DESTINATION "${gpumem_package}"
  CXX_MODULES_DIRECTORY modules)

# The partitions that the generated interface names, beside it, for readers and debuggers.
if(NOT GPUMEM_PARTITIONS)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/modules" DESTINATION "${CMAKE_INSTALL_DATADIR}/gpumem" FILES_MATCHING
    PATTERN "*.cppm" PATTERN gpumem.cppm EXCLUDE PATTERN scheduled EXCLUDE PATTERN bridge EXCLUDE
    PATTERN guide EXCLUDE PATTERN thrust EXCLUDE PATTERN snapshot EXCLUDE PATTERN growable EXCLUDE
    PATTERN device_heap EXCLUDE)
endif()

# The C ABI is a separate package: its users need no CUDA headers, no modules and no C++ compiler. Its archive and Debian's
# packages have the components c, c_development, simulator and tools.
set(gpumem_c_package "${CMAKE_INSTALL_LIBDIR}/cmake/gpumem_c")
install(TARGETS gpumem_c gpumem_bridge EXPORT gpumem_c
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT c NAMELINK_COMPONENT c_development
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT c_development)
install(EXPORT gpumem_c NAMESPACE gpumem:: FILE gpumem_cConfig.cmake DESTINATION "${gpumem_c_package}"
  COMPONENT c_development)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/gpumem_cConfigVersion.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/gpumem_cConfigVersion.cmake" DESTINATION "${gpumem_c_package}"
  COMPONENT c_development)
file(RELATIVE_PATH gpumem_prefix "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" gpumem_prefix "${gpumem_prefix}")
set(gpumem_include_folder "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(gpumem_include_folder "${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/gpumem_c.pc.in" "${PROJECT_BINARY_DIR}/gpumem_c.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/gpumem_c.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
  COMPONENT c_development)
# The Python module looks for the library two folders up, and for the sources of PyTorch's allocator beside itself.
set(gpumem_python "${CMAKE_INSTALL_LIBDIR}/gpumem/python")
install(FILES "${PROJECT_SOURCE_DIR}/modules/bridge/python/gpumem_torch.py"
  "${PROJECT_SOURCE_DIR}/modules/bridge/python/gpumem_torch_build.py"
  "${PROJECT_SOURCE_DIR}/modules/bridge/python/gpumem_torch_growable.py" DESTINATION "${gpumem_python}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/src/torch/" DESTINATION "${gpumem_python}/gpumem_torch.sources"
  FILES_MATCHING PATTERN "*.cpp" PATTERN "*.hpp")
install(FILES "${PROJECT_SOURCE_DIR}/modules/bridge/gpumem/gpumem.h"
  "${PROJECT_SOURCE_DIR}/modules/bridge/gpumem/gpumem_torch.h" "${PROJECT_SOURCE_DIR}/modules/bridge/gpumem/version.h"
  DESTINATION "${gpumem_python}/gpumem_torch.sources/gpumem")

# The simulated driver is loaded by name at run time and never linked. Programs that use it contain its path; the tools
# find it from their own folder.
install(TARGETS gpumem_simulator_driver gpumem_simulator_runtime LIBRARY DESTINATION "${gpumem_simulator_folder}"
  COMPONENT simulator)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/simulator_path.cpp" DESTINATION "${gpumem_package}")
if(GPUMEM_BUILD_BENCH)
  set(gpumem_tools gpumem-replay gpumem-advise gpumem-top gpumem-bench gpumem-completion-bench gpumem-waiting-bench)
  if(TARGET gpumem-report) # otherwise D3 was not found
    list(APPEND gpumem_tools gpumem-report)
  endif()
  set_target_properties(${gpumem_tools} PROPERTIES GPUMEM_INSTALLED ON)
  install(TARGETS ${gpumem_tools} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tools OPTIONAL)
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/gpumemConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/gpumemConfig.cmake" INSTALL_DESTINATION "${gpumem_package}"
  PATH_VARS gpumem_simulator_folder CMAKE_INSTALL_INCLUDEDIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/gpumemConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/gpumemConfig.cmake" "${PROJECT_BINARY_DIR}/gpumemConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindGpumemCCCL.cmake" "${PROJECT_SOURCE_DIR}/cmake/gpumem_requirements.cmake"
  DESTINATION "${gpumem_package}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/gpumem")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/modules/guide/" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/gpumem"
  FILES_MATCHING PATTERN "*.md")

if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall COMMENT "Removing the files of the last installation" VERBATIM
    COMMAND "${CMAKE_COMMAND}" "-DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt"
      -P "${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake")
endif()
