// PyTorch's memory on all devices: one gpumem pool per device, made at the first allocation there and never destroyed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include <gpumem/gpumem_torch.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "../support/guarded_mutex.hpp"
#include "torch_device.hpp"
#include "shared_blocks.hpp"

namespace gpumem::c {

/// The pools of all devices. Functions throw exceptions; the C functions that call them return outcomes instead, by
/// outcome_of(). Any thread may call them.
class torch_pools {
public:
  /// Returns the one instance of the process; never destroyed, since PyTorch frees tensors until the process ends.
  static torch_pools& instance() noexcept;

  void configure(char const* options);
  using observer = void (*)(int device, void* address, std::size_t bytes, int mapped);
  void observe_pages(observer changed) noexcept { observer_.store(changed, std::memory_order_release); }
  void set_fraction(double fraction, int device);

  /// Makes `pool` the pool of the device.
  void share_pool(int device, gpumem_pool* pool);

  /// Returns the device's memory; makes its pool if there is none.
  torch_device& of(int device) {
    auto* const known = made(device);
    return known ? *known : make(device);
  }
  /// Returns the device's memory; null if its pool was not made yet.
  torch_device* made(int device) { return devices_[slot_of(device)].load(std::memory_order_acquire); }

  /// Allocates `room` bytes on the device for a request of `bytes`, in the order of the stream. `promises` are flags of
  /// gpumem_torch_allocate_block.
  void* allocate(std::size_t bytes, std::size_t room, int device, void* stream, int promises);
  void free(void* pointer, std::size_t bytes, int device, void* stream) noexcept;
  /// Frees in the order of the stream of the allocation, and returns the bytes of the block. Throws
  /// std::invalid_argument if the pointer is no live block.
  std::size_t free(void* pointer);
  /// Declares that the stream uses the block, so that the free of the block waits for the stream's work. `device` is
  /// that of the stream; -1: that of the block. `promises`: GPUMEM_TORCH_STREAM_LIVES or 0.
  void record_stream(void* pointer, void* stream, int device, int promises);

  /// Lets other processes map the pages of the live block that holds the address, until the block is freed. Throws
  /// std::invalid_argument if there is no such block, or it does not lie in pages.
  shared_blocks::name share(void const* pointer);

  /// Describes the live block that starts at the address. Its device is -1 if there is none.
  gpumem_torch_block describe(void const* pointer);
  /// Gives unused memory of all devices back.
  void trim() noexcept;

private:
  static constexpr int max_devices = 64;
  static std::size_t slot_of(int device) {
    if (device < 0 || device >= max_devices) [[unlikely]]
      throw_unknown(device);
    return static_cast<std::size_t>(device);
  }
  [[noreturn]] static void throw_unknown(int device);
  torch_device& make(int device);
  std::unique_ptr<gpumem_pool> make_pages(int device, pool_options options);
  torch_device* owner_of(void const* pointer);
  static bool record_uses(gpumem_pool& pool, void* pointer, std::span<recorded_streams::stream const> users) noexcept;

  std::array<std::atomic<torch_device*>, max_devices> devices_{};
  std::atomic<int> count_{0};    // the highest number of a device with a pool, plus 1
  support::guarded_mutex mutex_; // held while a pool is made, but not while a pool is called
  std::array<std::size_t, max_devices> limits_ GPUMEM_GUARDED_BY(mutex_){};
  std::optional<std::string> options_ GPUMEM_GUARDED_BY(mutex_);
  bool options_used_ GPUMEM_GUARDED_BY(mutex_) = false; // then `options_` can no longer change
  recorded_streams recorded_;
  shared_blocks& shared_{shared_blocks::instance()};
  std::atomic<observer> observer_{nullptr};

  void keep(std::size_t slot, torch_device& device) GPUMEM_REQUIRES(mutex_);
};

} // namespace gpumem::c
