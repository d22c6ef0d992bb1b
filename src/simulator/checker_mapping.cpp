// checker: the checks before virtual memory is unmapped or a device loses access to it.
// SPDX-License-Identifier: Apache-2.0
#include <iterator>
#include <string>

#include "checker.hpp"
#include "virtual_memory.hpp"

namespace simulated {

void checker::left(const actor& who, const mapping& which) {
  const block_name block{which.of->number, which.address, which.bytes, true};
  for (const auto& [component, use] : which.uses) {
    if (host_.covers(component, use.number)) continue;
    report_unordered(finding_kind::premature_unmap, use.name, who.name, block,
                     describe(who.name) + " unmaps, or revokes access to, ",
                     " used by " + describe(use.name) + ", which the host has not seen complete");
  }
}

void checker::unmapped(const actor& who, const mapping& which) {
  const std::uint64_t end = which.address + which.bytes;
  for (auto& [owner, blocks] : blocks_) {
    auto at = blocks.lower_bound(which.address);
    if (at != blocks.begin() && std::prev(at)->first + std::prev(at)->second.name.bytes > which.address) --at;
    while (at != blocks.end() && at->first < end) {
      const block_name live = at->second.name;
      report_finding(finding_kind::live_block_in_freed_memory, {}, who.name, live,
                     describe(who.name) + " unmaps memory that holds the live " + describe(live));
      at = blocks.erase(at);
    }
  }
}

void checker::forget(const physical& which) {
  tracked_.erase(tracking_id(which));
  fresh(which.key(), which.bytes);
}

} // namespace simulated
