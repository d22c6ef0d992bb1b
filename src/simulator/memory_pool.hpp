// A driver's memory pool: segments drawn from the device, the blocks and free ranges in them, and who may reuse what.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "driver_api.hpp"
#include "memory.hpp"
#include "stream.hpp"

namespace simulated {

class simulation;

/// A free in stream order: what was freed may be given out again only behind it.
struct pool_free {
  position at;
  std::uint32_t component;
  vector_clock order;
};

struct pool_block {
  std::uint64_t address;
  std::size_t bytes;   // as asked for
  std::size_t granted; // rounded up
};

class memory_pool {
public:
  memory_pool(const CUmemPoolProps& made_of, context& at, std::uint64_t teller)
      : properties(made_of), home(at), owner(teller) {}

  const CUmemPoolProps properties;
  context& home;
  const std::uint64_t owner; // by which the checker knows its blocks
  CUmemoryPool handle = nullptr;
  bool destroyed = false;
  std::set<int> peers; // devices that were given access

  // The attributes.
  bool follow_events = true;
  bool opportunistic = true;
  bool internal = true;
  std::uint64_t threshold = 0;
  std::uint64_t reserved = 0;
  std::uint64_t reserved_high = 0;
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;

  [[nodiscard]] memory_kind kind() const noexcept;
  /// The device whose memory it is; 0 for memory of the host.
  [[nodiscard]] int device() const noexcept;

  /// Memory for an allocation on the stream; what it has to be ordered behind, if anything, in `behind`. Null when the
  /// pool is at its limit or the device is full.
  const pool_block* take(simulation& all, const stream& on, std::size_t bytes, std::shared_ptr<record>& behind);

  /// A block is free: behind `ended`, or at once.
  void put(std::uint64_t address, const pool_free* ended);

  /// Gives idle segments back while more than `most` bytes are reserved and at least `least` remain.
  void release(simulation& all, std::uint64_t most, std::uint64_t least, bool seen_by_host);

  /// The live block in which the address lies, or null.
  [[nodiscard]] const pool_block* find(std::uint64_t address) const;
  [[nodiscard]] bool holds(std::uint64_t address) const;
  /// Whether the host has seen every free done.
  [[nodiscard]] bool frees_seen(const simulation& all) const;
  [[nodiscard]] bool without_blocks() const noexcept { return blocks_.empty(); }
  [[nodiscard]] bool empty() const noexcept { return segments_.empty(); }

private:
  /// How an allocation may come to use a range, the cheapest first.
  enum class way { own, ordered, completed, wait, none };
  struct range {
    std::size_t bytes;
    std::vector<pool_free> frees; // one a component
  };
  using range_map = std::map<std::uint64_t, range>;

  [[nodiscard]] way way_to(const range& part, const stream& on) const;
  range_map::iterator best(const stream& on, std::size_t need, way furthest);
  const pool_block* cut(range_map::iterator place, std::size_t bytes, std::size_t need);
  range_map::iterator best_joined(const stream& on, std::size_t need, way furthest);
  template <class May> void join(range_map::iterator lower, May may);
  static bool alike(const range& lower, const range& upper);
  bool grow(simulation& all, std::size_t need);
  bool draw(simulation& all, std::size_t bytes);
  [[nodiscard]] bool idle(const simulation& all, std::uint64_t segment, std::size_t bytes, bool seen_by_host) const;

  std::map<std::uint64_t, std::size_t> segments_;
  std::map<std::uint64_t, pool_block> blocks_;
  range_map free_;
};

} // namespace simulated
