# Installs the library, the sources of its modules (whoever imports them compiles them anew) and the package files.
# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(gpumem_package "${CMAKE_INSTALL_LIBDIR}/cmake/gpumem")

install(TARGETS gpumem EXPORT gpumem
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILE_SET CXX_MODULES DESTINATION "${CMAKE_INSTALL_DATADIR}/gpumem/modules")
install(EXPORT gpumem NAMESPACE gpumem:: FILE gpumemTargets.cmake DESTINATION "${gpumem_package}"
  CXX_MODULES_DIRECTORY modules)

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/gpumemConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/gpumemConfig.cmake" INSTALL_DESTINATION "${gpumem_package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/gpumemConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/gpumemConfig.cmake" "${PROJECT_BINARY_DIR}/gpumemConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindGpumemCCCL.cmake" DESTINATION "${gpumem_package}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/gpumem")
