// Writes reports: of blocks that were never freed, and of the memory of a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/error.hpp>
#include <algorithm>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <string>
module gpumem:pool_reports.impl;
import :pool_reports;
import :block;
import :chunk_list;
import :driver;
import :error;
import :frees;
import :intrusive_list;
import :pool_options;
import :pool_parts;
import :process;
import :shard_list;
import :shard_roles;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

struct listed_pools {
  sync::mutex mutex;
  intrusive_list<leak_report> pools GPUMEM_GUARDED_BY(mutex);
  bool registered GPUMEM_GUARDED_BY(mutex) = false;
};

// Never destroyed: static objects may end their pools after this list would be destroyed.
listed_pools& listed() {
  static auto* const all = new listed_pools;
  return *all;
}

} // namespace

bool reports_leaks() { return is_set_in_environment("GPUMEM_REPORT_LEAKS"); }

leak_report::leak_report(char const* name, reader read, void* pool) : name_{name}, read_{read}, pool_{pool} {
  auto& all = listed();
  sync::lock const lock{all.mutex};
  if (!all.registered) at_driver_exit(write_all);
  all.registered = true;
  all.pools.push_back(*this);
}

leak_report::~leak_report() {
  if (forked()) return;
  auto& all = listed();
  sync::lock const lock{all.mutex};
  all.pools.remove(*this);
}

void leak_report::write_all() noexcept {
  auto& all = listed();
  sync::lock const lock{all.mutex};
  for (auto const* each = all.pools.first(); each; each = each->links_.next) each->write();
}

void leak_report::write() const noexcept try {
  auto const found = read_(pool_);
  if (found.count == 0) return;
  std::fprintf(stderr, "gpumem: %s: blocks never freed: %zu, of %zu bytes in all; the largest:\n", name_, found.count,
               found.bytes);
  for (auto const& one : found.largest) {
    std::fprintf(stderr, "gpumem:   %zu bytes at %p, allocated for stream %llu\n", one.bytes, one.base,
                 static_cast<unsigned long long>(one.stream));
  }
} catch (std::exception const& error) {
  std::fprintf(stderr, "gpumem: %s: live blocks cannot be listed: %s\n", name_, error.what());
}

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

group group_of(block const& block) noexcept {
  if (block.is_live()) return group::live;
  return block.is_free() || block.state() == block_state::quick_listed ? group::free : group::cached;
}

memory_counts count_memory(pool_parts& parts, shard_frees& frees) {
  memory_counts counts;
  all_shards_lock const lock{parts.shards};
  frees.drain_all_remote_frees();
  counts.reserved = parts.chunks.reserved();
  counts.limit = parts.chunks.limit();
  parts.chunks.visit([&](chunk const& parent) {
    parent.visit([&](block const& one) {
      if (one.state() == block_state::hole) return;
      auto const in = group_of(one);
      auto const stream = in == group::free ? 0 : one.stream->id();
      auto& counted = counts.rows[{in, stream, static_cast<int>(std::bit_width(one.bytes - 1))}];
      ++counted.blocks;
      counted.bytes += one.bytes;
      if (in == group::free) counts.largest_free = std::max(counts.largest_free, one.bytes);
    });
  });
  return counts;
}

std::string blocks_text(row const& counted, char const* noun) {
  return std::to_string(counted.blocks) + " " + noun + (counted.blocks == 1 ? ", " : "s, ") + size_text(counted.bytes);
}

std::string sum_text(row_map const& rows, group group, char const* noun) {
  row sum;
  for (auto const& [key, counted] : rows) {
    if (key.in != group) continue;
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

void append_failure_report(pool_parts& parts, shard_frees& frees, failure const& failure) noexcept try {
  std::ofstream file{parts.options.failure_report, std::ios::app};
  file << "gpumem: a request for " << size_text(failure.requested) << " failed: " << to_string(failure.reason)
       << (is_no_addresses(failure) ? ", since the pool found no addresses for more pages\n" : "\n")
       << describe_memory(parts, frees);
} catch (...) {} // without a report the caller still gets the failure

} // namespace gpumem::detail
