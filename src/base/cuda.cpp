// Defines the link guard, a symbol named after the version of CCCL: objects that were built with another version need
// another symbol and fail to link.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/cccl.hpp>
// Weak, since the simulator's client library, which links without gpumem, defines the symbol too.
extern "C" [[gnu::weak]] char const GPUMEM_CCCL_LINK_GUARD = 0;
module gpumem:cuda.impl;
import :cuda;
