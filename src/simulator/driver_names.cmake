# gpumem_simulator_driver_names(CUDA_H FOLDER): what the driver's header names, as includes: every function (a stub for
# each that is not simulated) and every error.
# SPDX-License-Identifier: Apache-2.0
function(gpumem_simulator_driver_names header folder)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")

  file(STRINGS "${header}" lines REGEX "^CUresult CUDAAPI cu[A-Za-z0-9_]+ *\\(")
  set(rows "")
  set(definitions "")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^CUresult CUDAAPI (cu[A-Za-z0-9_]+)")
      continue()
    endif()
    set(name "${CMAKE_MATCH_1}")
    string(APPEND rows "{\"${name}\", [] { return gpumem_simulator_missing(\"${name}\"); }},\n")
    string(APPEND definitions
      "extern \"C\" [[gnu::weak, gnu::visibility(\"default\")]] int ${name}() { return gpumem_simulator_missing(\"${name}\"); }\n")
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/stub_rows.inc" CONTENT "${rows}" @ONLY)
  file(CONFIGURE OUTPUT "${folder}/stubs.cpp"
    CONTENT "int gpumem_simulator_missing(const char* name);\n${definitions}" @ONLY)

  file(STRINGS "${header}" lines REGEX "^ +CUDA_(SUCCESS|ERROR_[A-Z0-9_]+) *= *[0-9]+")
  set(rows "")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "CUDA_[A-Z0-9_]+" name "${line}")
    string(APPEND rows "{${name}, \"${name}\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${folder}/error_names.inc" CONTENT "${rows}" @ONLY)
endfunction()
