// PyTorch's pools: one per device, made at the first allocation on it and never destroyed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem_torch.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "../support/guarded_mutex.hpp"
#include "recorded_streams.hpp"

namespace gpumem::c {

/// The pools of all devices. Its functions throw exceptions that outcome_of() makes outcomes of. Any thread.
class torch_pools {
public:
  /// Returns the one instance of the process; never destroyed, since PyTorch frees tensors until the process ends.
  static torch_pools& instance();

  void configure(char const* options);
  void set_fraction(double fraction, int device);

  /// Makes the pool that of its device.
  void share_pool(int device, gpumem_pool* pool);

  /// Returns the device's pool; makes it if there is none.
  gpumem_pool* of(int device);
  /// Returns the device's pool; null if it was not made yet.
  gpumem_pool* made(int device);

  void* allocate(std::size_t bytes, int device, void* stream);
  void free(void* pointer, std::size_t bytes, int device, void* stream) noexcept;
  void record_stream(void* pointer, void* stream);

  void begin_graph(int device, gpumem_torch_pool_id graph);
  void end_graph(int device, gpumem_torch_pool_id graph);
  void release_graph(int device, gpumem_torch_pool_id graph) noexcept;
  /// Gives unused memory back on devices without graphs.
  void trim() noexcept;

private:
  static constexpr int max_devices = 64;
  struct graph_use {
    int captures = 0; // begun and not ended
    int holders = 0;  // begun and not released
  };

  static std::size_t slot_of(int device);
  void require_none(int device);
  gpumem_pool* make(int device);
  bool holds_graphs(int device);
  bool record_uses(int device, void* pointer, void* stream, std::span<void* const> users) noexcept;

  std::array<std::atomic<gpumem_pool*>, max_devices> pools_{};
  support::guarded_mutex mutex_; // not held while a pool is called, but while a pool is made
  std::array<double, max_devices> fractions_ __attribute__((guarded_by(mutex_))){};
  std::optional<std::string> options_ __attribute__((guarded_by(mutex_)));
  bool options_used_ __attribute__((guarded_by(mutex_))) = false; // a pool was made; a shared one was not
  std::map<std::pair<int, gpumem_torch_pool_id>, graph_use> graphs_ __attribute__((guarded_by(mutex_)));
  recorded_streams recorded_;
};

} // namespace gpumem::c
