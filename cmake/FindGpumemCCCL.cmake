# Finds cuda.h (>= 13.0), the static CUDA runtime beside it, and the headers of CCCL (>= 3.5.0). Defines the target
# gpumem_cccl.
# SPDX-License-Identifier: Apache-2.0
#
# CCCL's own package files are not found in the wheels of some versions (no report is known), and a toolkit carries a
# CCCL that is too old. So the version is read from the header and trees that are too old are passed over. The target
# is not imported: its folders become -I and win over the toolkit's CCCL, which nvcc adds as -isystem. This is the one
# place that says which CCCL a build uses. Remove the finder when the required toolkit carries CCCL >= 3.5.0.
#
# Looked at, in this order: GPUMEM_CCCL_INCLUDE_DIR and GPUMEM_CUDA_INCLUDE_DIR (CMake or environment), the wheels
# in GPUMEM_WHEELS, CUDACXX, nvcc on PATH, CUDA_HOME, CUDA_PATH, the system's folders, /usr/local/cuda. An installed
# package was built with the folders GpumemCCCL_HINT and GpumemCCCL_CUDA_HINT. The first comes before the wheels, since
# the package needs that version of CCCL; the second comes after CUDA_PATH.

function(gpumem_read_number file macro result)
  set(number 0)
  if(EXISTS "${file}")
    file(STRINGS "${file}" line REGEX "^[ \t]*#[ \t]*define[ \t]+${macro}[ \t]+[0-9]+")
    if(line MATCHES "${macro}[ \t]+([0-9]+)")
      set(number "${CMAKE_MATCH_1}")
    endif()
  endif()
  set(${result} "${number}" PARENT_SCOPE)
endfunction()

function(gpumem_cccl_version directory result)  # CCCL_VERSION 3005000 is 3.5.0
  gpumem_read_number("${directory}/cuda/std/__cccl/version.h" CCCL_VERSION number)
  math(EXPR major "${number} / 1000000")
  math(EXPR minor "${number} / 1000 % 1000")
  math(EXPR patch "${number} % 1000")
  set(${result} "${major}.${minor}.${patch}" PARENT_SCOPE)
endfunction()

function(gpumem_cuda_version directory result)  # CUDA_VERSION 13000 is 13.0
  gpumem_read_number("${directory}/cuda.h" CUDA_VERSION number)
  math(EXPR major "${number} / 1000")
  math(EXPR minor "${number} % 1000 / 10")
  set(${result} "${major}.${minor}" PARENT_SCOPE)
endfunction()

function(gpumem_accept_cccl result directory)
  gpumem_cccl_version("${directory}" version)
  if(version VERSION_LESS GpumemCCCL_FIND_VERSION)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

function(gpumem_accept_cuda result directory)
  gpumem_cuda_version("${directory}" version)
  if(version VERSION_LESS 13.0)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# The root folders of the toolkits that the environment names.
set(gpumem_toolkits)
foreach(gpumem_wheels IN ITEMS "${GPUMEM_WHEELS}" "$ENV{GPUMEM_WHEELS}")
  if(gpumem_wheels)
    list(APPEND gpumem_toolkits "${gpumem_wheels}/nvidia/cu13")
  endif()
endforeach()
find_program(gpumem_nvcc_on_path nvcc NO_CACHE)
foreach(gpumem_nvcc IN ITEMS "${CMAKE_CUDA_COMPILER}" "$ENV{CUDACXX}" "${gpumem_nvcc_on_path}")
  if(IS_ABSOLUTE "${gpumem_nvcc}")
    cmake_path(GET gpumem_nvcc PARENT_PATH gpumem_bin)
    list(APPEND gpumem_toolkits "${gpumem_bin}/..")
  endif()
endforeach()
foreach(gpumem_root IN ITEMS "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}")
  if(gpumem_root)
    list(APPEND gpumem_toolkits "${gpumem_root}")
  endif()
endforeach()

find_path(GPUMEM_CUDA_INCLUDE_DIR cuda.h
  HINTS "$ENV{GPUMEM_CUDA_INCLUDE_DIR}" ${gpumem_toolkits} ${GpumemCCCL_CUDA_HINT}
  PATHS /usr/local/cuda PATH_SUFFIXES include VALIDATOR gpumem_accept_cuda
  DOC "Folder of cuda.h, 13.0 or newer")
find_path(GPUMEM_CCCL_INCLUDE_DIR cuda/buffer
  HINTS "$ENV{GPUMEM_CCCL_INCLUDE_DIR}" ${GpumemCCCL_HINT} ${gpumem_toolkits}
  PATHS "${GPUMEM_CUDA_INCLUDE_DIR}" /usr/local/cuda
  PATH_SUFFIXES cccl include/cccl include VALIDATOR gpumem_accept_cccl
  DOC "Folder of CCCL's headers, 3.5.0 or newer (it holds cuda/, thrust/ and cub/)")
# CCCL's cuda_error gets its text from the runtime. A target with the property CUDA_RUNTIME_LIBRARY Shared gets the
# shared one: CMake names that behind this archive, which would win.
find_library(GPUMEM_CUDART NAMES cudart_static
  HINTS "${GPUMEM_CUDA_INCLUDE_DIR}/../lib64" "${GPUMEM_CUDA_INCLUDE_DIR}/../lib"
  DOC "The CUDA runtime, libcudart_static.a")
find_library(GPUMEM_SHARED_CUDART NAMES cudart libcudart.so.13 NAMES_PER_DIR
  HINTS "${GPUMEM_CUDA_INCLUDE_DIR}/../lib64" "${GPUMEM_CUDA_INCLUDE_DIR}/../lib"
  DOC "The CUDA runtime, libcudart.so, for targets that link the shared one")
mark_as_advanced(GPUMEM_CUDA_INCLUDE_DIR GPUMEM_CCCL_INCLUDE_DIR GPUMEM_CUDART GPUMEM_SHARED_CUDART)
if(GPUMEM_CCCL_INCLUDE_DIR)
  gpumem_cccl_version("${GPUMEM_CCCL_INCLUDE_DIR}" GpumemCCCL_VERSION)
endif()
if(GPUMEM_CUDA_INCLUDE_DIR)
  gpumem_cuda_version("${GPUMEM_CUDA_INCLUDE_DIR}" GpumemCCCL_CUDA_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(GpumemCCCL
  REQUIRED_VARS GPUMEM_CCCL_INCLUDE_DIR GPUMEM_CUDA_INCLUDE_DIR GPUMEM_CUDART
  VERSION_VAR GpumemCCCL_VERSION
  REASON_FAILURE_MESSAGE "gpumem needs cuda.h and libcudart_static.a of CUDA 13.0 or newer, and the headers of CCCL \
3.5.0 or newer (the toolkit 13.0 carries 3.0.1). Get CCCL with \
`pip install --target DIR nvidia-cuda-cccl==13.3.5.0.6` and pass -DGPUMEM_WHEELS=DIR, \
or pass -DGPUMEM_CCCL_INCLUDE_DIR and -DGPUMEM_CUDA_INCLUDE_DIR.")

# Two CCCL versions in one program compile without a message, but differ in their layouts.
if(GpumemCCCL_FOUND AND CCCL_FOUND AND DEFINED CCCL_VERSION AND NOT CCCL_VERSION VERSION_EQUAL GpumemCCCL_VERSION)
  set(GpumemCCCL_FOUND FALSE)
  message(FATAL_ERROR "two CCCL trees in one build: find_package(CCCL) gave ${CCCL_VERSION}, gpumem uses "
                      "${GpumemCCCL_VERSION} of ${GPUMEM_CCCL_INCLUDE_DIR}. Point both at the same headers.")
endif()

if(GpumemCCCL_FOUND AND NOT TARGET gpumem_cccl)
  add_library(gpumem_cccl INTERFACE)
  target_include_directories(gpumem_cccl INTERFACE "${GPUMEM_CCCL_INCLUDE_DIR}" "${GPUMEM_CUDA_INCLUDE_DIR}")
  find_package(Threads REQUIRED)
  set(gpumem_shared "$<STREQUAL:$<UPPER_CASE:$<TARGET_PROPERTY:CUDA_RUNTIME_LIBRARY>>,SHARED>")
  target_link_libraries(gpumem_cccl INTERFACE
    "$<IF:$<AND:${gpumem_shared},$<BOOL:${GPUMEM_SHARED_CUDART}>>,${GPUMEM_SHARED_CUDART},${GPUMEM_CUDART}>"
    Threads::Threads ${CMAKE_DL_LIBS} rt)
endif()
