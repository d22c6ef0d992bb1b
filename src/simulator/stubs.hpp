// The functions of the driver's header that are not simulated; the build system generates their list.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

/// Prints to stderr that `name` is not simulated. Returns the error for the call.
int gpumem_simulator_missing(char const* name);

namespace simulated {

using stub = int (*)();

struct stub_row {
  std::string_view name;
  stub function;
};

inline constexpr stub_row stubs[] = {
#include "stub_rows.inc"
};

} // namespace simulated
