// Counts the blocks of a pool by stream and size, and writes the counts as text.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/error.hpp>
#include <algorithm>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
module gpumem:memory_report.impl;
import :memory_report;
import :block;
import :chunk_list;
import :error;
import :frees;
import :pool_options;
import :pool_parts;
import :shard_list;
import :stream_timeline;

namespace gpumem::detail {
namespace {

enum class group : std::uint8_t { live, cached, free };

// Sums over blocks of the same group and stream, and of the same size after rounding up to a power of two. Free ranges
// have no stream.
struct row {
  std::size_t blocks = 0;
  std::size_t bytes = 0;
};
struct row_key {
  group in;
  std::uint64_t stream;
  int log2; // of the size
  auto operator<=>(row_key const&) const = default;
};
using row_map = std::map<row_key, row>;

struct memory_counts {
  row_map rows;
  std::size_t reserved = 0;
  std::size_t limit = 0;
  std::size_t largest_free = 0;
};

group group_of(block const& one) noexcept {
  if (one.is_live()) return group::live;
  return one.is_free() || one.state() == block_state::quick_listed ? group::free : group::cached;
}

memory_counts count_memory(pool_parts& parts, shard_frees& frees) {
  memory_counts found;
  all_shards_lock const held{parts.shards};
  frees.drain_all_remote_frees();
  found.reserved = parts.chunks.reserved();
  found.limit = parts.chunks.limit();
  parts.chunks.visit([&](chunk const& parent) {
    parent.visit([&](block const& one) {
      if (one.state() == block_state::hole) return;
      auto const in = group_of(one);
      auto const stream = in == group::free ? 0 : one.stream->id();
      auto& counted = found.rows[{in, stream, static_cast<int>(std::bit_width(one.bytes - 1))}];
      ++counted.blocks;
      counted.bytes += one.bytes;
      if (in == group::free) found.largest_free = std::max(found.largest_free, one.bytes);
    });
  });
  return found;
}

std::string blocks_text(row const& counted, char const* noun) {
  return std::to_string(counted.blocks) + " " + noun + (counted.blocks == 1 ? ", " : "s, ") + size_text(counted.bytes);
}

std::string sum_text(row_map const& rows, group in, char const* noun) {
  row sum;
  for (auto const& [key, counted] : rows) {
    if (key.in != in) continue;
    sum.blocks += counted.blocks;
    sum.bytes += counted.bytes;
  }
  return blocks_text(sum, noun);
}

std::string line_of(row_key const& key, row const& counted) {
  auto const& [in, stream, log2] = key;
  auto const up_to = ", each of up to " + size_text(std::size_t{1} << log2) + "\n";
  if (in == group::free) return "  free: " + blocks_text(counted, "range") + up_to;
  return std::string{in == group::live ? "  live" : "  cached"} + " of stream " + std::to_string(stream) + ": " +
         blocks_text(counted, "block") + up_to;
}

} // namespace

std::string describe_memory(pool_parts& parts, shard_frees& frees) {
  auto const found = count_memory(parts, frees);
  auto text = "gpumem: " + parts.options.name + " has reserved " + size_text(found.reserved);
  if (found.limit) text += " of at most " + size_text(found.limit);
  text += ": live " + sum_text(found.rows, group::live, "block") + "; cached " +
          sum_text(found.rows, group::cached, "block") + "; free " + sum_text(found.rows, group::free, "range") +
          ", the largest " + size_text(found.largest_free) + "\n";
  for (auto const& [key, counted] : found.rows) text += line_of(key, counted);
  return text;
}

void append_failure_report(pool_parts& parts, shard_frees& frees, failure const& why) noexcept try {
  std::ofstream file{parts.options.failure_report, std::ios::app};
  file << "gpumem: a request for " << size_text(why.requested) << " failed: " << to_string(why.reason)
       << (is_no_addresses(why) ? ", since the pool found no addresses for more pages\n" : "\n")
       << describe_memory(parts, frees);
} catch (...) {} // without a report the caller still gets the failure

} // namespace gpumem::detail
