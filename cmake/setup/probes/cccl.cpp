// CCCL's memory resources with a host compiler, in a version that is new enough.
// SPDX-License-Identifier: Apache-2.0
#include <cuda/memory_resource>
#include <cuda/stream_ref>

#if CCCL_VERSION < 3005000
#error "CCCL 3.5.0 or newer is needed"
#endif

using any = cuda::mr::any_resource<cuda::mr::device_accessible>;
