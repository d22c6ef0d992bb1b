// Adds uses to live blocks, and makes room for them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <optional>
#include <vector>
module gpumem:recorded_uses.impl;
import :recorded_uses;
import :block;
import :cuda;
import :error;
import :frees;
import :misuse;
import :misuse_check;
import :pool_mode;
import :pool_parts;
import :reuse_rules;
import :shard_list;
import :stream;
import :stream_timeline;
import :tuning;

namespace gpumem::detail {
namespace {

// The most streams whose uses a live block can hold. One more place stays for the stream that frees the block.
inline constexpr std::size_t max_uses = stream_uses::max_streams - 1;

} // namespace

stream_uses recorded_uses::of(void const* pointer) noexcept {
  all_shards_lock const held{parts_.shards};
  auto const* const used = parts_.shards.find_live(pointer).that;
  return used ? used->uses : stream_uses{};
}

bool recorded_uses::record(stream_key const& key, void* pointer) {
  key.timeline().prepare();
  late_misuse wrong;
  all_shards_lock const held{parts_.shards};
  if (!key.capturing()) deferred_.run(&key);
  auto* const used = find_or_explain(parts_, key, pointer, std::nullopt, wrong);
  if (!used) return false;
  parts_.mode.add_stream(key.timeline());
  auto& timeline = key.timeline();
  if (!used->uses.find(timeline)) admit(used->uses, key);
  auto const recorded = key.has_handle() ? timeline.record_at_free(key.handle()) : epoch{0};
  used->uses.add({&timeline, recorded ? recorded : key.end_use(used->bytes, true)});
  return true;
}

// Makes room for a use if the block already has `max_uses`. The stream of the new use waits on the device for one of
// the old uses. The old use is then removed, since the new one covers it. If no use has an event to wait for, the host
// waits until the uses are complete.
void recorded_uses::admit(stream_uses& uses, stream_key const& key) {
  uses.prune();
  if (uses.size() < max_uses) return;
  for (auto const& use : uses) {
    if (!key.timeline().ordered_after(*use.timeline, use.newest) &&
        !use.timeline->insert_wait(key.timeline(), key.handle(), use.newest)) {
      continue;
    }
    uses.remove(*use.timeline);
    return;
  }
  std::vector<stream_timeline*> open;
  for (auto const& use : uses) open.push_back(use.timeline);
  {
    all_shards_unlock const during{parts_.shards};
    wait_for_streams(open, tuning::max_host_wait);
  }
  uses.prune();
  if (uses.size() >= max_uses) throw_cuda_error(CUDA_ERROR_NOT_READY, "gpumem: record_use");
}

} // namespace gpumem::detail
