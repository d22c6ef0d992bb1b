// The table of resources that can be replayed, by name.
// SPDX-License-Identifier: Apache-2.0
module;

#include <span>
#include <string>
#include <string_view>
#include <vector>

export module replay:resources;

import :options;
import :replay_session;
import :result;

namespace replay {

/// Adds the allocators of these libraries to the table. Call it before the other functions here. Throws
/// std::runtime_error.
export void add_peers(std::vector<std::string> const& libraries);

/// Returns the names in the order of the table, for the command line.
export std::vector<resource_name> resource_names();

/// Measures one trace over the resource that `what` names.
export result measure_by_name(run_config const& what);

} // namespace replay
