// The results as people read them.
// SPDX-License-Identifier: Apache-2.0
module;

#include <span>
#include <string>

export module replay:table;

import :result;

namespace replay {

/// One table a resource, one row a trace. Columns that no result has a figure for are left out.
export std::string format_tables(std::span<result const> results);

} // namespace replay
