// Uses of live blocks on other streams than their own, as they are recorded.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>
module gpumem:pool_uses.impl;
import :pool_engine;
import :block;
import :cuda;
import :error;
import :shards;
import :stream;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

// Uses on other streams that a live block keeps apart: the stream that frees it takes the fourth place.
inline constexpr std::size_t most_uses = tag_set::most - 1;

} // namespace

tag_set pool_engine::uses_of(void const* pointer) noexcept {
  shard_locks const held{shards_};
  auto const* const used = shards_.granted_at(pointer).that;
  return used ? used->tags : tag_set{};
}

bool pool_engine::record_use(stream_key const& key, void* pointer) {
  key.order().prepare();
  shard_locks held{shards_};
  if (!key.capturing()) serve_deferred(&key);
  auto* const used = checked_block(key, pointer, std::nullopt);
  if (!used) return false;
  note_stream(key.order());
  auto& order = key.order();
  if (!used->tags.find(order)) admit_use(used->tags, key, held);
  auto const recorded = key.has_handle() ? order.record_precise(key.handle()) : epoch{0};
  used->tags.add({&order, recorded ? recorded : key.end_use(used->bytes, true)});
  return true;
}

// One more stream than can be kept apart: it waits for one of the others, which it then stands for. Where none has
// evidence to wait for, the host waits until their events are complete.
void pool_engine::admit_use(tag_set& uses, stream_key const& key, shard_locks& held) {
  uses.prune();
  if (uses.size() < most_uses) return;
  for (auto const& use : uses) {
    if (!key.order().ordered_after(*use.order, use.newest) &&
        !use.order->order_before(key.order(), key.handle(), use.newest)) {
      continue;
    }
    uses.remove(*use.order);
    return;
  }
  std::vector<timeline*> open;
  for (auto const& use : uses) open.push_back(use.order);
  held.unlock();
  wait_for_streams(open, std::chrono::seconds{1});
  held.lock();
  uses.prune();
  if (uses.size() >= most_uses) throw_cuda_error(CUDA_ERROR_NOT_READY, "gpumem: record_use");
}

} // namespace gpumem::detail
