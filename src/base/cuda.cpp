// Defines the link guard: objects that were built with another version of CCCL need another symbol and fail to link.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/cccl.hpp>
// Weak: the simulator's client library, which links without gpumem, defines it too.
extern "C" [[gnu::weak]] const char GPUMEM_CCCL_LINK_GUARD = 0;
module gpumem:cuda.impl;
import :cuda;
