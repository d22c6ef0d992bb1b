// Sums up live blocks by label, or by stream if they have none.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/error.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>
module gpumem:holders.impl;
import :holders;
import :labels;
import :memory_walk;

namespace gpumem::detail {
namespace {

struct holding {
  std::string name;
  std::size_t blocks = 0;
  std::size_t bytes = 0;
};

// Returns the sums, the largest first. Adds the bytes that are not live to `unused`.
std::vector<holding> holdings_of(std::span<copied_block const> blocks, std::size_t& unused) {
  std::map<std::pair<std::uint32_t, std::uint64_t>, holding> sums; // by label and stream
  for (auto const& each : blocks) {
    if (each.state != memory_state::live) {
      unused += each.bytes;
      continue;
    }
    auto& sum = sums[{each.label, each.label ? 0 : each.stream}];
    if (sum.blocks == 0)
      sum.name = each.label ? "'" + label_text(each.label) + "'" : "stream " + std::to_string(each.stream);
    ++sum.blocks;
    sum.bytes += each.bytes;
  }
  std::vector<holding> sorted;
  for (auto& [key, sum] : sums) sorted.push_back(std::move(sum));
  std::ranges::sort(sorted, std::greater{}, &holding::bytes);
  return sorted;
}

} // namespace

void append_holders(std::span<copied_block const> blocks, std::size_t limit, std::size_t bytes, std::string& text) {
  constexpr std::size_t shown = 3;
  std::size_t unused = 0, reserved = 0;
  auto const holdings = holdings_of(blocks, unused);
  if (holdings.empty()) return;
  for (auto const& each : blocks) reserved += each.bytes;
  auto const most = std::min(holdings.size(), shown);
  for (std::size_t i = 0; i < most; ++i) {
    auto const& one = holdings[i];
    text += (i ? ", of " : "; live of ") + one.name + ": " + std::to_string(one.blocks) +
            (one.blocks == 1 ? " block, " : " blocks, ") + size_text(one.bytes);
  }
  if (bytes == 0) return;
  if (bytes <= unused) {
    text += "; enough is free, but in pieces or still in use";
    return;
  }
  auto const usable = unused + (limit > reserved ? limit - reserved : 0);
  if (bytes <= usable) return; // below the pool's limit, others have the memory of the device
  auto const missing = bytes - usable;
  std::size_t freed = 0, count = 0;
  while (count < most && freed < missing) freed += holdings[count++].bytes;
  text += "; " + size_text(missing) + " more must be freed: ";
  if (freed < missing) {
    text += "more than these have";
  } else {
    text += count == 1 ? holdings.front().name + " has enough" : "the first " + std::to_string(count) + " have enough";
  }
}

} // namespace gpumem::detail
