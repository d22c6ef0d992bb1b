// Compares recordings.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>
module report:changes.impl;
import :changes;
import :summary;
import :text;

namespace report {

namespace detail {

std::uint64_t difference(change const& of) {
  return std::max(of.bytes_before, of.bytes_after) - std::min(of.bytes_before, of.bytes_after);
}

void leave_changes(std::vector<change>& all) {
  std::erase_if(all, [](change const& each) {
    return each.bytes_before == each.bytes_after && each.blocks_before == each.blocks_after;
  });
  std::ranges::sort(all, {}, [](change const& each) { return std::pair{~difference(each), each.name}; });
}

std::vector<change> compare(std::vector<holder> const& before, std::vector<holder> const& after) {
  std::map<std::string, change> by_name;
  for (holder const& each : before) {
    by_name[each.name].bytes_before += each.bytes;
    by_name[each.name].blocks_before += each.blocks;
  }
  for (holder const& each : after) {
    by_name[each.name].bytes_after += each.bytes;
    by_name[each.name].blocks_after += each.blocks;
  }
  std::vector<change> all;
  for (auto& [name, each] : by_name) {
    each.name = name;
    all.push_back(std::move(each));
  }
  leave_changes(all);
  return all;
}

std::pair<std::uint64_t, std::uint64_t> bytes_and_blocks(summary const& of, std::size_t bin) {
  size_bin const& size = of.sizes[bin];
  if (of.snapshot) return {size.bytes_at_end, size.blocks_at_end};
  return {size.bytes_at_peak, size.blocks_at_peak};
}

} // namespace detail

moment const& compared_moment(summary const& of) { return of.snapshot ? of.main.last : of.main.peak_live; }
holder_lists const& compared_holders(summary const& of) { return of.snapshot ? of.at_end : of.at_peak; }

change_lists compare(summary const& before, summary const& after) {
  change_lists made;
  auto const &first = compared_holders(before), &second = compared_holders(after);
  if (!first.labels.empty() || !second.labels.empty()) made.labels = detail::compare(first.labels, second.labels);
  made.streams = detail::compare(first.streams, second.streams);
  for (std::size_t bin = 0; bin < size_bins; ++bin) {
    auto const [bytes_before, blocks_before] = detail::bytes_and_blocks(before, bin);
    auto const [bytes_after, blocks_after] = detail::bytes_and_blocks(after, bin);
    made.sizes.push_back({format_sizes(bin), bytes_before, bytes_after, blocks_before, blocks_after});
  }
  detail::leave_changes(made.sizes);
  return made;
}

} // namespace report
