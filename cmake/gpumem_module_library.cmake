# gpumem_add_module_library(NAME [DEFINITIONS...]): the library from GPUMEM_INTERFACES and GPUMEM_IMPLEMENTATIONS.
function(gpumem_add_module_library name)
  add_library(${name} STATIC)
  target_sources(${name}
    PUBLIC FILE_SET CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}/modules" FILES ${GPUMEM_INTERFACES}
    PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/modules/bridge" FILES ${GPUMEM_HEADERS}
    PRIVATE FILE_SET implementation TYPE CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}/src" FILES ${GPUMEM_IMPLEMENTATIONS})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC gpumem_cccl Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_definitions(${name} PUBLIC ${ARGN})
endfunction()
