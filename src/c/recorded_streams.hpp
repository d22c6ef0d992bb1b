// The streams that PyTorch has recorded for blocks, until the blocks are freed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "../support/guarded_mutex.hpp"

namespace gpumem::c {

/// The streams that PyTorch has recorded for each live block. They are used only when the block is freed. PyTorch
/// promises that the reuse of the block waits for all work that these streams were given before the free, including
/// work from after the recording. Any thread.
class recorded_streams {
public:
  struct stream {
    void* handle;
    int device;
    friend bool operator==(stream const&, stream const&) = default;
  };
  /// Adds a stream for a block; does nothing if the stream was added before. Throws std::bad_alloc.
  void add(void* block, stream used);

  /// Removes and returns the streams of the block. Costs one atomic load if no block has any streams: the free of a
  /// block is ordered after all recordings for it.
  std::vector<stream> take(void* block) noexcept {
    return blocks_.load(std::memory_order_acquire) == 0 ? std::vector<stream>{} : take_recorded(block);
  }

private:
  std::vector<stream> take_recorded(void* block) noexcept;
  support::guarded_mutex mutex_;
  std::unordered_map<void*, std::vector<stream>> streams_ __attribute__((guarded_by(mutex_)));
  std::atomic<std::size_t> blocks_{0};
};

} // namespace gpumem::c
