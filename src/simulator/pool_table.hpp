// pool_table: the memory pools of the driver, by handle, by address, and by location.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "driver_api.hpp"
#include "handle_table.hpp"
#include "memory_pool.hpp"

namespace simulated {

class pool_table {
public:
  /// Returns success, or the driver's error for a pool with these properties.
  static CUresult judge(const CUmemPoolProps& properties, int devices);

  memory_pool& create(simulation& all, const CUmemPoolProps& properties);

  /// Refuses further requests to the pool. Removes the pool once its blocks are freed and these frees are complete.
  void destroy(simulation& all, memory_pool& which);

  [[nodiscard]] memory_pool* find(CUmemoryPool handle) const;
  [[nodiscard]] memory_pool* holding(std::uint64_t address) const;

  /// default_of() returns the default pool of a location, current_of() its current pool; null for a location without a
  /// pool.
  memory_pool* default_of(simulation& all, const CUmemLocation& location, CUmemAllocationType type);
  memory_pool* current_of(simulation& all, const CUmemLocation& location, CUmemAllocationType type);
  /// Sets the current pool of a location; null sets the default pool. Returns false if the pool has another location or
  /// type.
  bool set_current(const CUmemLocation& location, CUmemAllocationType type, memory_pool* which);
  [[nodiscard]] bool is_default(const memory_pool& which) const;

  /// Called after a wait of the host. `covered(at)` returns whether the wait included the free at the position `at`.
  /// Removes these frees from the list `unawaited` of each pool, and trims each pool to its release threshold.
  void after_wait(simulation& all, const std::function<bool(const position&)>& covered);
  /// Gives unused memory of destroyed pools back to the devices, and removes the pools that hold none.
  void collect(simulation& all);

  void clear();
  /// Removes the pools of a context that is destroyed.
  void drop(const context& home);

private:
  using place = std::tuple<CUmemAllocationType, CUmemLocationType, int>;
  static std::optional<place> place_of(const CUmemLocation& location, CUmemAllocationType type);

  handle_table<memory_pool> handles_;
  std::vector<std::shared_ptr<memory_pool>> pools_; // including destroyed pools that still hold memory
  std::map<place, memory_pool*> defaults_;
  std::map<place, memory_pool*> current_;
  std::uint64_t made_ = 0;
};

} // namespace simulated
