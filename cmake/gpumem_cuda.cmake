# Finds nvcc, and adds libraries that it compiles.
# SPDX-License-Identifier: Apache-2.0
#
# No enable_language(CUDA): the project has to configure without nvcc too, and CMake's test of the CUDA compiler
# links with it, which fails on the wheels until links are added (see cmake/setup/install.sh). nvcc only compiles here;
# clang links.
set(GPUMEM_CUDA_ARCHITECTURES 90 CACHE STRING "Compute capabilities that .cu files are compiled for")

function(gpumem_accept_nvcc result file)
  execute_process(COMMAND "${file}" --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE failed)
  if(failed OR NOT text MATCHES "release ([0-9]+\\.[0-9]+)" OR CMAKE_MATCH_1 VERSION_LESS 13.0)
    set(${result} FALSE PARENT_SCOPE)
    return()
  endif()
  # Each nvcc refuses host compilers that are newer than it knows: 13.0 takes clang up to 20, 13.5 up to 22.
  execute_process(COMMAND "${file}" -ccbin "${CMAKE_CXX_COMPILER}" -E -x cu /dev/null
    OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# Prefers the nvcc of the toolkit whose headers are used: another one would put its own CCCL before the one that was
# found. Otherwise takes one of the toolkits that the environment names, which FindGpumemCCCL.cmake has collected.
find_program(GPUMEM_NVCC nvcc HINTS "${GPUMEM_CUDA_INCLUDE_DIR}/.." ${gpumem_toolkits} PATHS /usr/local/cuda
  PATH_SUFFIXES bin VALIDATOR gpumem_accept_nvcc DOC "nvcc 13.0 or newer")

if(GPUMEM_NVCC)
  set(GPUMEM_CUDA_FOUND TRUE)
  message(STATUS "nvcc: ${GPUMEM_NVCC}, architectures ${GPUMEM_CUDA_ARCHITECTURES}")
else()
  set(GPUMEM_CUDA_FOUND FALSE)
  message(STATUS "no nvcc 13.0 or newer for this compiler: parts made of .cu files are left out")
endif()
mark_as_advanced(GPUMEM_NVCC)

# gpumem_add_cuda_library(<name> SOURCES <file.cu>... [LIBRARIES <library>...] [OPTIONS <option>...])
# Adds a static library of .cu files. nvcc compiles them, with the project's compiler as host compiler; include folders
# and definitions come from LIBRARIES, further options of nvcc from OPTIONS. Requires GPUMEM_CUDA_FOUND.
function(gpumem_add_cuda_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES;OPTIONS")
  if(NOT GPUMEM_CUDA_FOUND)
    message(FATAL_ERROR "gpumem_add_cuda_library(${name}): there is no nvcc")
  endif()
  set(flags -std=c++20 -ccbin "${CMAKE_CXX_COMPILER}" --extended-lambda "-Xcompiler=-Wall,-Wextra,-fPIC"
    "$<IF:$<CONFIG:Debug>,-g,-O2>" "$<$<NOT:$<CONFIG:Debug>>:-DNDEBUG>")
  if(CMAKE_COMPILE_WARNING_AS_ERROR)
    list(APPEND flags -Werror=all-warnings "-Xcompiler=-Werror")
  endif()
  if(GPUMEM_SANITIZE)
    list(APPEND flags "-Xcompiler=-fsanitize=${GPUMEM_SANITIZE}")
    string(REPLACE "sanitize=address,undefined" "sanitize=address,-fsanitize=undefined" flags "${flags}")
  endif()
  foreach(architecture IN LISTS GPUMEM_CUDA_ARCHITECTURES)
    list(APPEND flags
      "-gencode=arch=compute_${architecture},code=[compute_${architecture},sm_${architecture}]")
  endforeach()

  set(folders "$<TARGET_PROPERTY:${name},INCLUDE_DIRECTORIES>")
  set(definitions "$<TARGET_PROPERTY:${name},COMPILE_DEFINITIONS>")
  set(objects)
  foreach(source IN LISTS arg_SOURCES)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" OUTPUT_VARIABLE path)
    cmake_path(GET source FILENAME file)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.${file}.o")
    add_custom_command(OUTPUT "${object}"
      COMMAND "${GPUMEM_NVCC}" ${flags} ${arg_OPTIONS}
        "$<$<BOOL:${folders}>:-I$<JOIN:${folders},;-I>>" "$<$<BOOL:${definitions}>:-D$<JOIN:${definitions},;-D>>"
        -MD -MF "${object}.d" -c "${path}" -o "${object}"
      DEPENDS "${path}" DEPFILE "${object}.d"
      COMMENT "Building CUDA object ${file}.o of ${name}" COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  add_library(${name} STATIC ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PUBLIC gpumem_cccl ${arg_LIBRARIES})
endfunction()
