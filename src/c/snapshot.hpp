// Files of snapshots: their options.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpumem::c {

/// A file to write a snapshot to.
struct snapshot_file {
  std::string path;
  bool pickle = false; ///< PyTorch's format in place of JSON
};

/// Returns the file with the format that the options name. Throws std::invalid_argument for unknown options.
snapshot_file parse_snapshot_options(std::string path, std::string_view options);

} // namespace gpumem::c
