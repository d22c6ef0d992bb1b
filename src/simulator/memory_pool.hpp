// Memory pools of the driver, and the table of them by handle, by address, and by location.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "driver_api.hpp"
#include "handle_table.hpp"
#include "memory.hpp"
#include "stream.hpp"

namespace simulated {

class simulation;

/// A stream-ordered free. The memory must not be reused before it.
struct pool_free {
  simulated::position position;
  std::uint32_t component;
  vector_clock order;
};

struct pool_block {
  std::uint64_t address;
  std::size_t bytes;   // requested bytes
  std::size_t granted; // rounded-up bytes
};

class memory_pool {
public:
  memory_pool(CUmemPoolProps const& made_of, context& home_context, std::uint64_t owner_number)
      : properties(made_of), home(home_context), owner(owner_number) {}

  CUmemPoolProps const properties;
  context& home;
  std::uint64_t const owner; // by this number the checker of the order tells this pool's blocks from others
  CUmemoryPool handle = nullptr;
  bool destroyed = false;
  std::set<int> peers; // devices that got access
  /// For each stream, the newest free on it, until the host has waited for that free. A query does not count as a wait.
  std::vector<position> unawaited;

  // The attributes of the pool, as in CUmemPool_attribute.
  bool follow_events = true;
  bool opportunistic = true;
  bool internal = true;
  std::uint64_t release_threshold = 0;
  std::uint64_t reserved = 0;
  std::uint64_t reserved_high = 0;
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;

  [[nodiscard]] memory_kind kind() const noexcept;
  /// Returns the device of the memory; 0 for host memory.
  [[nodiscard]] int device() const noexcept;

  /// Allocates for the stream. If the allocation must wait for frees on other streams, sets `frees_record` to a record
  /// of these frees. Returns null if the pool is at its limit or the device is full.
  pool_block const* allocate(simulation& simulation, stream const& stream, std::size_t bytes,
                             std::shared_ptr<record>& frees_record);

  /// Frees the block at `address`. Its memory can be reused after the free `ended` in stream order, or immediately if
  /// `ended` is null.
  void free(std::uint64_t address, pool_free const* ended);

  /// Gives idle chunks back to the device while more than `most` bytes are reserved; at least `least` bytes stay. A
  /// chunk is idle if it holds no block and all frees in it are complete. With `seen_by_host` the host must also be
  /// ordered after these frees.
  void trim(simulation& simulation, std::uint64_t most, std::uint64_t least, bool seen_by_host);

  /// Returns the live block that holds the address; null if there is none.
  [[nodiscard]] pool_block const* find(std::uint64_t address) const;
  [[nodiscard]] bool holds(std::uint64_t address) const;
  [[nodiscard]] bool without_blocks() const noexcept { return blocks_.empty(); }
  [[nodiscard]] bool empty() const noexcept { return chunks_.empty(); }

private:
  /// How a stream can get a free range, the cheapest tier first. `same_stream`: it freed the range itself. `ordered`:
  /// it is ordered after the frees. `completed`: the frees are complete. `wait`: it waits for the frees. `none`: it
  /// must not get the range.
  enum class reuse_tier { same_stream, ordered, completed, wait, none };
  struct range {
    std::size_t bytes;
    std::vector<pool_free> frees; // at most one per stream
  };
  using range_map = std::map<std::uint64_t, range>;

  [[nodiscard]] reuse_tier tier_of(range const& part, stream const& stream) const;
  range_map::iterator best(stream const& stream, std::size_t need, reuse_tier last_tier);
  pool_block const* split(range_map::iterator place, std::size_t bytes, std::size_t need);
  range_map::iterator best_coalesced(stream const& stream, std::size_t need, reuse_tier last_tier);
  template <class May> void coalesce(range_map::iterator lower, May may);
  static bool alike(range const& lower, range const& upper);
  bool grow(simulation& simulation, std::size_t need);
  bool add_chunk(simulation& simulation, std::size_t bytes);
  [[nodiscard]] bool idle(simulation const& simulation, std::uint64_t chunk, std::size_t bytes,
                          bool seen_by_host) const;

  std::map<std::uint64_t, std::size_t> chunks_;
  std::map<std::uint64_t, pool_block> blocks_;
  range_map free_;
};

class pool_table {
public:
  /// Returns success, or the driver's error for a pool with these properties.
  static CUresult check_properties(CUmemPoolProps const& properties, int devices);

  memory_pool& create(simulation& simulation, CUmemPoolProps const& properties);

  /// Refuses further requests to the pool. Removes the pool once its blocks are freed and these frees are complete.
  void destroy(simulation& simulation, memory_pool& pool);

  [[nodiscard]] memory_pool* find(CUmemoryPool handle) const;
  [[nodiscard]] memory_pool* holding(std::uint64_t address) const;

  /// default_of() returns the default pool of a location, current_of() its current pool; null for a location without a
  /// pool.
  memory_pool* default_of(simulation& simulation, CUmemLocation const& location, CUmemAllocationType type);
  memory_pool* current_of(simulation& simulation, CUmemLocation const& location, CUmemAllocationType type);
  /// Sets the current pool of a location; null sets the default pool. Returns false if the pool has another location or
  /// type.
  bool set_current(CUmemLocation const& location, CUmemAllocationType type, memory_pool* pool);
  [[nodiscard]] bool is_default(memory_pool const& pool) const;

  /// Called after a wait of the host. `covered(at)` returns whether the wait included the free at the position `at`.
  /// Removes these frees from the list `unawaited` of each pool, and trims each pool to its release threshold.
  void after_wait(simulation& simulation, std::function<bool(position const&)> const& covered);
  /// Gives unused memory of destroyed pools back to the devices, and removes the pools that hold none.
  void collect(simulation& simulation);

  void clear();
  /// Removes the pools of a context that is destroyed.
  void drop(context const& home);

private:
  using place = std::tuple<CUmemAllocationType, CUmemLocationType, int>;
  static std::optional<place> place_of(CUmemLocation const& location, CUmemAllocationType type);

  handle_table<memory_pool> handles_;
  std::vector<std::shared_ptr<memory_pool>> pools_; // including destroyed pools that still hold memory
  std::map<place, memory_pool*> defaults_;
  std::map<place, memory_pool*> current_;
  std::uint64_t pool_count_ = 0;
};

} // namespace simulated
