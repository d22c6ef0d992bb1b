// Adds and removes the streams that PyTorch has recorded for blocks.
// SPDX-License-Identifier: Apache-2.0
#include "recorded_streams.hpp"

#include <algorithm>
#include <utility>

namespace gpumem::c {

void recorded_streams::add(void* block, stream used) {
  support::scoped_lock const held{mutex_};
  auto& streams = streams_[block];
  blocks_.store(streams_.size(), std::memory_order_release);
  if (std::ranges::find(streams, used) == streams.end()) streams.push_back(used);
}

std::vector<recorded_streams::stream> recorded_streams::take_recorded(void* block) noexcept {
  support::scoped_lock const held{mutex_};
  auto const found = streams_.find(block);
  if (found == streams_.end()) return {};
  auto streams = std::move(found->second);
  streams_.erase(found);
  blocks_.store(streams_.size(), std::memory_order_release);
  return streams;
}

} // namespace gpumem::c
