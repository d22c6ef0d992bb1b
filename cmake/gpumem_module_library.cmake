# The module library: one list of files, as many targets as there are flavours of it.
# SPDX-License-Identifier: Apache-2.0

# gpumem_add_module_library(<name> [DEFINITIONS <definition>...])
# A static library from GPUMEM_HEADERS, GPUMEM_INTERFACES (paths under modules/) and GPUMEM_IMPLEMENTATIONS
# (paths under src/). The definitions reach everybody who imports it, so that both sides see the same text.
function(gpumem_add_module_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEFINITIONS")
  set(headers ${GPUMEM_HEADERS})
  set(interfaces ${GPUMEM_INTERFACES})
  set(implementations ${GPUMEM_IMPLEMENTATIONS})
  list(TRANSFORM headers PREPEND "${PROJECT_SOURCE_DIR}/modules/")
  list(TRANSFORM interfaces PREPEND "${PROJECT_SOURCE_DIR}/modules/")
  list(TRANSFORM implementations PREPEND "${PROJECT_SOURCE_DIR}/src/")

  add_library(${name} STATIC)
  target_sources(${name}
    PUBLIC FILE_SET CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}/modules" FILES ${interfaces}
    PRIVATE FILE_SET implementation TYPE CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}/src" FILES ${implementations})
  if(headers)  # an empty set would name an include folder that is never installed
    target_sources(${name}
      PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/modules/bridge" FILES ${headers})
  endif()
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_definitions(${name} PUBLIC ${arg_DEFINITIONS})
  # Installed, the same target comes from the finder that the package ships.
  target_link_libraries(${name} PUBLIC
    "$<BUILD_INTERFACE:gpumem_cccl>" "$<INSTALL_INTERFACE:gpumem::cccl>" Threads::Threads ${CMAKE_DL_LIBS})
endfunction()
