// The outcomes of requests, and the exceptions that report failures.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/error.hpp>
export module gpumem:error;
import :cuda;
import :std;

export namespace gpumem {

using gpumem::acquire_error;
using gpumem::failure;
using gpumem::out_of_memory;
using gpumem::out_of_memory_info;
using gpumem::outcome;
using gpumem::to_string;

namespace extend {
/// Throws the exception that belongs to the failure: out_of_memory for exhausted and too_large (with the statistics),
/// cuda_error for device_lost and driver_error, std::invalid_argument for invalid_argument, acquire_error for the rest.
[[noreturn]] void throw_failure(failure const& why, out_of_memory_info const& info = {});

} // namespace extend

} // namespace gpumem
