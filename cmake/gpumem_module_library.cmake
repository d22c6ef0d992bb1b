# The module library: one list of files, as many targets as there are forms of it.
# SPDX-License-Identifier: Apache-2.0

# gpumem_add_module_library(<name> [INTERFACES <file>...] [IMPLEMENTATIONS <file>...])
# A static library from the lists GPUMEM_HEADERS, GPUMEM_INTERFACES (paths under modules/) and
# GPUMEM_IMPLEMENTATIONS (paths under src/), and the files of its own form, named the same way.
function(gpumem_add_module_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "INTERFACES;IMPLEMENTATIONS")
  set(headers ${GPUMEM_HEADERS})
  set(interfaces ${GPUMEM_INTERFACES} ${arg_INTERFACES})
  set(implementations ${GPUMEM_IMPLEMENTATIONS} ${arg_IMPLEMENTATIONS})
  list(TRANSFORM headers PREPEND "${PROJECT_SOURCE_DIR}/modules/")
  list(TRANSFORM interfaces PREPEND "${PROJECT_SOURCE_DIR}/modules/")
  list(TRANSFORM implementations PREPEND "${PROJECT_SOURCE_DIR}/src/")

  add_library(${name} STATIC)
  target_sources(${name}
    PUBLIC FILE_SET CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}/modules" FILES ${interfaces}
    PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/modules/bridge" FILES ${headers}
    PRIVATE FILE_SET implementation TYPE CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}/src" FILES ${implementations})
  target_compile_features(${name} PUBLIC cxx_std_20)
  # For gpumem_c, and for shared libraries of others; a program's linker takes the indirections out again.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  # Installed, the same target comes from the finder that the package ships.
  target_link_libraries(${name} PUBLIC
    "$<BUILD_INTERFACE:gpumem_cccl>" "$<INSTALL_INTERFACE:gpumem::cccl>" Threads::Threads ${CMAKE_DL_LIBS})
endfunction()
