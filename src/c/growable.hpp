// Buffers that grow, over pools of the C ABI.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/growable.h>

#include <string_view>

#include <cuda/stream>

#include "pool.hpp"

namespace gpumem::c {

/// Makes a buffer over the pages of a pool. Throws std::invalid_argument for options that are unknown, repeated or
/// malformed, and for a pool without pages, and what the constructor of growable_buffer throws.
gpumem_growable* make_growable(extend::services_handle pool, cuda::stream_ref stream, std::string_view options);

} // namespace gpumem::c
