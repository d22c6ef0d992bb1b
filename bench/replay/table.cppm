// The results as tables, for people.
// SPDX-License-Identifier: Apache-2.0
module;

#include <span>
#include <string>

export module replay:table;

import :result;

namespace replay {

/// Returns one table per resource, with one row per trace. Columns without any value are left out.
export std::string format_tables(std::span<result const> results);

} // namespace replay
