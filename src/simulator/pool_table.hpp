// The memory pools of the driver: by handle, by the address that they hold, and those that a location uses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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
  /// Whether a device can make such a pool; success, or what the driver says.
  static CUresult judge(const CUmemPoolProps& properties, int devices);

  memory_pool& create(simulation& all, const CUmemPoolProps& properties);

  /// The pool takes no more requests, and goes once its blocks are freed and their frees have run.
  void destroy(simulation& all, memory_pool& which);

  [[nodiscard]] memory_pool* find(CUmemoryPool handle) const;
  [[nodiscard]] memory_pool* holding(std::uint64_t address) const;

  /// The pool that a location has from the start, or the one that it uses now; null for a location without one.
  memory_pool* default_of(simulation& all, const CUmemLocation& location, CUmemAllocationType type);
  memory_pool* current_of(simulation& all, const CUmemLocation& location, CUmemAllocationType type);
  /// Null brings the default back. False if the pool is of another location or type.
  bool set_current(const CUmemLocation& location, CUmemAllocationType type, memory_pool* which);
  [[nodiscard]] bool is_default(const memory_pool& which) const;

  /// After a wait of the host: each pool falls to its release threshold.
  void after_wait(simulation& all);
  /// Destroyed pools give back what is no longer in use.
  void collect(simulation& all);

  void clear();
  /// The pools whose memory dies with a context.
  void drop(const context& home);

private:
  using place = std::tuple<CUmemAllocationType, CUmemLocationType, int>;
  static std::optional<place> place_of(const CUmemLocation& location, CUmemAllocationType type);

  handle_table<memory_pool> handles_;
  std::vector<std::shared_ptr<memory_pool>> pools_; // the destroyed ones that still hold memory too
  std::map<place, memory_pool*> defaults_;
  std::map<place, memory_pool*> current_;
  std::uint64_t made_ = 0;
};

} // namespace simulated
