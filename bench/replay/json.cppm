// The results as JSON, for programs.
// SPDX-License-Identifier: Apache-2.0
module;

#include <span>
#include <string>

export module replay:json;

import :result;

namespace replay {

/// Returns an array with one object per trace and resource. Field names include the units; values that were not
/// measured are absent.
export std::string format_json(std::span<result const> results);

/// Writes `text` to `path` atomically: writes a temporary file beside it and renames that. Throws std::runtime_error
/// with the path.
export void write_whole(std::string const& path, std::string const& text);

} // namespace replay
