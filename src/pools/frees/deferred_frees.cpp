// Defers frees inside a graph capture, and completes them in a later call outside of the capture.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <optional>
#include <utility>
module gpumem:deferred_frees.impl;
import :deferred_frees;
import :block;
import :pool_mode;
import :pool_parts;
import :reuse_rules;
import :shard_frees;
import :stream;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

void deferred_frees::add(block& freed, stream_key const& key) noexcept {
  freed.set_state(block_state::deferred);
  freed.stream = &key.timeline();
  freed.stream->retain();
  freed.next = std::exchange(first_, &freed);
  parts_.mode.set_deferred_frees(true);
  parts_.notify();
}

void deferred_frees::run_all(stream_key const* now) noexcept {
  while (auto* const freed = first_) {
    first_ = freed->next;
    auto& timeline = *freed->stream;
    bool const given = now && &now->timeline() == &timeline && now->has_handle();
    auto const ended = !timeline.is_mortal() ? timeline.current_epoch()
                       : given               ? now->end_use(freed->bytes, true)
                                             : timeline.end_use(std::nullopt, freed->bytes, false);
    parts_.rules.prune(freed->uses);
    freed->uses.add({&timeline, ended});
    timeline.release();
    frees_.free_block(*freed);
  }
  parts_.mode.set_deferred_frees(false);
  parts_.notify();
}

} // namespace gpumem::detail
