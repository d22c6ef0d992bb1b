// PyTorch's pools: one per device, made at the first allocation on it and never destroyed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem_torch.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "../support/guarded_mutex.hpp"
#include "recorded_streams.hpp"
#include "torch_device.hpp"

namespace gpumem::c {

/// The pools of all devices. Its functions throw exceptions that outcome_of() makes outcomes of. Any thread.
class torch_pools {
public:
  /// Returns the one instance of the process; never destroyed, since PyTorch frees tensors until the process ends.
  static torch_pools& instance();

  void configure(char const* options);
  using observer = void (*)(int device, void* address, std::size_t bytes, int mapped);
  void observe_pages(observer changed) noexcept { observer_.store(changed, std::memory_order_release); }
  void set_fraction(double fraction, int device);

  /// Makes the pool that of its device.
  void share_pool(int device, gpumem_pool* pool);

  /// Returns the device; makes its pool if there is none.
  torch_device& of(int device);
  /// Returns the device; null if its pool was not made yet.
  torch_device* made(int device);

  /// See torch_device::allocate.
  void* allocate(std::size_t bytes, std::size_t room, int device, void* stream, int promises);
  void free(void* pointer, std::size_t bytes, int device, void* stream) noexcept;
  /// Frees on the stream of the allocation, and returns the bytes that it got. Throws std::invalid_argument if the
  /// pointer is no live block.
  std::size_t free(void* pointer);
  /// `device`: that of the stream; -1: that of the block.
  void record_stream(void* pointer, void* stream, int device);

  /// Describes a live block; its device is -1 if the address is not that of one.
  gpumem_torch_block describe(void const* pointer);
  /// Gives unused memory back.
  void trim() noexcept;

private:
  static constexpr int max_devices = 64;
  static std::size_t slot_of(int device);
  torch_device& make(int device);
  std::unique_ptr<gpumem_pool> make_pages(int device, pool_options options);
  torch_device* owner_of(void const* pointer);
  static bool record_uses(gpumem_pool& of, void* pointer, std::span<recorded_streams::stream const> users) noexcept;

  std::array<std::atomic<torch_device*>, max_devices> devices_{};
  std::atomic<int> count_{0};    // one more than the highest device that has a pool
  support::guarded_mutex mutex_; // not held while a pool is called, but while a pool is made
  std::array<std::size_t, max_devices> limits_ __attribute__((guarded_by(mutex_))){};
  std::optional<std::string> options_ __attribute__((guarded_by(mutex_)));
  bool options_used_ __attribute__((guarded_by(mutex_))) = false; // a pool was made; a shared one was not
  recorded_streams recorded_;
  std::atomic<observer> observer_{nullptr};

  void keep(std::size_t slot, torch_device& device) __attribute__((requires_capability(mutex_)));
};

} // namespace gpumem::c
