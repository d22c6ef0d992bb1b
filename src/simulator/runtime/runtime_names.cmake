# gpumem_simulator_runtime_names(INCLUDE_FOLDER FOLDER): writes a stub for each function, and a row for each error, that
# the runtime's headers name.
# SPDX-License-Identifier: Apache-2.0
function(gpumem_simulator_runtime_names include_folder folder)
  # The library has these too, but no header of CUDA's wheels names them.
  set(names __cudaGetProcAddress cudaFuncGetParamInfo cudaGetExportTable cudaGetFuncBySymbol cudaGetKernel
    cudaProfilerStart cudaProfilerStop)
  foreach(header IN ITEMS cuda_runtime_api.h cuda_egl_interop.h cuda_gl_interop.h cuda_vdpau_interop.h)
    set(header "${include_folder}/${header}")
    if(NOT EXISTS "${header}")
      continue()
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
    file(STRINGS "${header}" lines REGEX "CUDARTAPI cuda[A-Za-z0-9_]+ *\\(|^ *#define cuda.*__CUDART_API_PT(SZ|DS)")
    foreach(line IN LISTS lines)
      if(line MATCHES "__CUDART_API_PT(SZ|DS)\\((cuda[A-Za-z0-9]+)\\)")
        string(TOLOWER "${CMAKE_MATCH_2}_pt${CMAKE_MATCH_1}" suffixed)
        string(REGEX REPLACE ".*_" "${CMAKE_MATCH_2}_" suffixed "${suffixed}")
        list(APPEND names "${suffixed}")
      elseif(line MATCHES "CUDARTAPI (cuda[A-Za-z0-9_]+)")
        list(APPEND names "${CMAKE_MATCH_1}")
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES names)

  set(definitions "")
  foreach(name IN LISTS names)
    string(APPEND definitions "extern \"C\" [[gnu::weak, gnu::visibility(\"default\")]] int ${name}() {\n"
      "  static bool told;\n  return gpumem_simulator_runtime_missing(\"${name}\", told);\n}\n")
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/runtime_stubs.cpp" @ONLY
    CONTENT "extern \"C\" int gpumem_simulator_runtime_missing(const char* name, bool& told);\n${definitions}")

  file(STRINGS "${include_folder}/driver_types.h" lines REGEX "^ +cuda(Success|Error[A-Za-z0-9]+) *= *[0-9]+")
  set(rows "")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "cuda[A-Za-z0-9]+" name "${line}")
    string(APPEND rows "{${name}, \"${name}\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/runtime_error_names.inc" CONTENT "${rows}" @ONLY)

  # The version of its symbols has the name of the library.
  file(STRINGS "${include_folder}/cuda_runtime_api.h" line REGEX "^#define CUDART_VERSION +[0-9]+")
  string(REGEX MATCH "[0-9]+$" version "${line}")
  math(EXPR major "${version} / 1000")
  set(gpumem_simulator_runtime_major "${major}" PARENT_SCOPE)
  file(CONFIGURE OUTPUT "${folder}/runtime.map" @ONLY
    CONTENT "libcudart.so.${major} {\n  global: cuda*; __cuda*;\n  local: *;\n};\n")
endfunction()
