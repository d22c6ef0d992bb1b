find_path(GPUMEM_CUDA_INCLUDE_DIR cuda.h HINTS $ENV{CUDA_HOME}/include REQUIRED)
find_path(GPUMEM_CCCL_INCLUDE_DIR cuda/buffer REQUIRED)
add_library(gpumem_cccl INTERFACE)
target_include_directories(gpumem_cccl INTERFACE
  "$<BUILD_INTERFACE:${GPUMEM_CCCL_INCLUDE_DIR}>" "$<BUILD_INTERFACE:${GPUMEM_CUDA_INCLUDE_DIR}>")
