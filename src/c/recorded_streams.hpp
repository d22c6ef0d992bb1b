// Which streams use which blocks until their free.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gpumem::c {

/// The streams that PyTorch recorded for each live block. They are looked at when the block is freed, because PyTorch
/// promises to wait for what they have been given by then, not by the time of the recording. Any thread.
class recorded_streams {
public:
  /// Once is enough for each stream. Throws std::bad_alloc.
  void add(void* block, void* stream);

  /// The block's streams, which are then forgotten. One load where there are none for any block.
  std::vector<void*> take(void* block) noexcept;

private:
  std::mutex mutex_;
  std::unordered_map<void*, std::vector<void*>> streams_;
  std::atomic<std::size_t> blocks_{0};
};

} // namespace gpumem::c
