# Finds the CUDA and CCCL headers for the project's own build, first in the wheels that the set-up installed.
# SPDX-License-Identifier: Apache-2.0
if(NOT GPUMEM_WHEELS AND EXISTS "${PROJECT_SOURCE_DIR}/.tools/wheels/nvidia")
  set(GPUMEM_WHEELS "${PROJECT_SOURCE_DIR}/.tools/wheels")
endif()
find_package(GpumemCCCL 3.5.0 REQUIRED)
message(STATUS "CCCL ${GpumemCCCL_VERSION} in ${GPUMEM_CCCL_INCLUDE_DIR}, CUDA ${GpumemCCCL_CUDA_VERSION}")
