// Includes CCCL, for gpumem and for code that shares CCCL's types with gpumem. Checks CCCL's version, also at link
// time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda/std/version>

#if !defined(CCCL_VERSION) || CCCL_VERSION < 3005000
#error "gpumem needs CCCL 3.5.0 or newer in front of the toolkit's own: pass its folder with -I (pip: nvidia-cuda-cccl)"
#endif

#include <cuda/devices>
#include <cuda/memory_resource>
#include <cuda/std/expected>
#include <cuda/std/span>
#include <cuda/stream>

// Object files built with different CCCL versions must not share types. Each object file refers to a symbol with its
// CCCL version in the name. The library defines only the symbol of its own version, so object files of another version
// fail to link.
#define GPUMEM_DETAIL_CONCAT_(a, b) a##b
#define GPUMEM_DETAIL_CONCAT(a, b) GPUMEM_DETAIL_CONCAT_(a, b)
#define GPUMEM_CCCL_LINK_GUARD GPUMEM_DETAIL_CONCAT(gpumem_built_with_cccl_, CCCL_VERSION)

extern "C" char const GPUMEM_CCCL_LINK_GUARD;

namespace gpumem::detail {
[[gnu::used]] inline char const* const cccl_link_guard = &GPUMEM_CCCL_LINK_GUARD;
}
