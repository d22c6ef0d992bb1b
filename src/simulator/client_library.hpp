// The control functions of the simulated device, from the library that this program has loaded.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "control.h"

namespace gpumem::simulator::detail {

/// The control functions of the loaded library.
struct control {
  decltype(&gpumem_simulator_reset_with) reset;
  decltype(&gpumem_simulator_seed) seed;
  decltype(&gpumem_simulator_step) step;
  decltype(&gpumem_simulator_run_until_idle) run_until_idle;
  decltype(&gpumem_simulator_fail_allocation) fail_allocation;
  decltype(&gpumem_simulator_fail_call) fail_call;
  decltype(&gpumem_simulator_sticky_error) sticky_error;
  decltype(&gpumem_simulator_never_complete) never_complete;
  decltype(&gpumem_simulator_work) work;
  decltype(&gpumem_simulator_new_owner) new_owner;
  decltype(&gpumem_simulator_allocated) allocated;
  decltype(&gpumem_simulator_freed) freed;
  decltype(&gpumem_simulator_use_recorded) use_recorded;
  decltype(&gpumem_simulator_on_call) on_call;
  decltype(&gpumem_simulator_on_block) on_block;
  decltype(&gpumem_simulator_read_statistics) read_statistics;
  decltype(&gpumem_simulator_visit_calls) visit_calls;
  decltype(&gpumem_simulator_clear_calls) clear_calls;
  decltype(&gpumem_simulator_visit_findings) visit_findings;
};

/// Returns the library's functions; null before load().
control const* loaded_control() noexcept;

/// Returns the library's functions. Throws `error` before load().
control const& require_control();

/// Opens the library. Returns false if it was open already. Throws `error` if it cannot be opened.
bool open_library();

} // namespace gpumem::simulator::detail
