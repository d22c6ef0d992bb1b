// The text that gpumem-top prints.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pages.hpp"

#include <span>
#include <string>

namespace top {

/// Returns a table with a row for each pool.
std::string format_table(std::span<process const> all);

/// Returns the numbers in the text format of Prometheus.
std::string format_prometheus(std::span<process const> all);

} // namespace top
