// Changes between two recordings.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <string>
#include <vector>
export module report:changes;
import :summary;

namespace report {

/// The bytes and blocks of one holder, or of one range of sizes, in two recordings.
export struct change {
  std::string name;
  std::uint64_t bytes_before = 0, bytes_after = 0, blocks_before = 0, blocks_after = 0;

  bool operator==(change const&) const = default;
};

/// The largest differences of bytes first; what did not change is left out.
export struct change_lists {
  std::vector<change> labels, streams, sizes;
};

/// Returns the state that a comparison takes: that of the snapshot, or peak live of a log.
export moment const& compared_moment(summary const& of);
export holder_lists const& compared_holders(summary const& of);

export change_lists compare(summary const& before, summary const& after);

} // namespace report
