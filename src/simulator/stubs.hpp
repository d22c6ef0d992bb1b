// The names that the driver's header knows and that are not simulated; the list is made at configure time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

/// Says on stderr that `name` is not simulated; the error to return.
int gpumem_simulator_missing(const char* name);

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
