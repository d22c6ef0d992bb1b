// `import gpumem;` must define no macros, neither its own nor those of headers that it includes.
// SPDX-License-Identifier: Apache-2.0

import gpumem;

#if defined(GPUMEM_DRIVER_FUNCTIONS) || defined(GPUMEM_DRIVER_NAME) || defined(GPUMEM_DRIVER_INDEX) ||                 \
    defined(GPUMEM_DRIVER_MEMBER) || defined(GPUMEM_DRIVER_VISIT)
#error "the driver's table leaks macros"
#endif
#if defined(CUDA_VERSION) || defined(cuMemAlloc) || defined(CU_STREAM_LEGACY)
#error "cuda.h leaks macros"
#endif
#if defined(CCCL_VERSION) || defined(GPUMEM_CCCL_LINK_GUARD) || defined(_CCCL_HOST_DEVICE)
#error "CCCL leaks macros"
#endif
#if defined(assert) || defined(EOF) || defined(PTHREAD_MUTEX_INITIALIZER)
#error "the system's headers leak macros"
#endif
