# gpumem_add_module_library(NAME SYNC_INTERFACE SYNC_IMPLEMENTATION): the library from the lists GPUMEM_HEADERS,
# GPUMEM_INTERFACES and GPUMEM_IMPLEMENTATIONS, with one form of the partition `:sync`.
function(gpumem_add_module_library name sync_interface sync_implementation)
  add_library(${name} STATIC)
  target_sources(${name}
    PUBLIC FILE_SET CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}/modules" FILES ${GPUMEM_INTERFACES} ${sync_interface}
    PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/modules/bridge" FILES ${GPUMEM_HEADERS}
    PRIVATE FILE_SET implementation TYPE CXX_MODULES BASE_DIRS "${PROJECT_SOURCE_DIR}/src"
      FILES ${GPUMEM_IMPLEMENTATIONS} ${sync_implementation})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC gpumem_cccl Threads::Threads ${CMAKE_DL_LIBS})
endfunction()
