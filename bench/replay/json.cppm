// The results as programs read them.
// SPDX-License-Identifier: Apache-2.0
module;

#include <span>
#include <string>

export module replay:json;

import :result;

namespace replay {

/// An array with one object for each trace and resource. Units are in the names; what was not measured is
/// absent.
export std::string format_json(std::span<result const> results);

/// Writes `text` to `path` so that there is never half of it: to a file beside it, renamed at the end. Throws
/// std::runtime_error with the path.
export void write_whole(std::string const& path, std::string const& text);

} // namespace replay
