// The exceptions of failures.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <stdexcept>
module gpumem:error.impl;
import :error;
import :cuda;
import :driver;

namespace gpumem {

void extend::throw_failure(failure const& why, out_of_memory_info const& info) {
  switch (why.reason) {
  case outcome::exhausted:
  case outcome::too_large: {
    auto filled = info;
    filled.requested = why.requested;
    throw out_of_memory{why.reason, filled};
  }
  case outcome::device_lost:
  case outcome::driver_error: throw_cuda_error(static_cast<CUresult>(why.code), "gpumem: the device refused memory");
  case outcome::invalid_argument:
    throw std::invalid_argument{
        "gpumem: the alignment is not a power of two, or the stream is a default stream of another device"};
  default: throw acquire_error{why};
  }
}

} // namespace gpumem
