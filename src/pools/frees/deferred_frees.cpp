// Defers frees inside a graph capture, and completes them in a later call outside of the capture.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
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

namespace gpumem::detail {

// The capturing stream comes after the work of the stream for which the block was allocated, but may be destroyed
// without an event. So if that other stream lives, its work becomes a use of its own.
void deferred_frees::add(block& freed, stream_key const& key) noexcept {
  freed.set_state(block_state::deferred);
  if (freed.stream == &key.timeline()) {
    freed.stream->owe_event();
  } else if (freed.stream->owns_handle()) {
    freed.uses.add({freed.stream, freed.stream->current_epoch()}); // a block has at most three recorded uses
  }
  freed.stream = &key.timeline();
  freed.stream->retain();
  freed.next = std::exchange(first_, &freed);
  parts_.mode.set_deferred_frees(true);
  parts_.notify();
}

// A block with four open uses stays deferred until one of them is complete.
void deferred_frees::run_all(stream_key const* now) noexcept {
  for (auto* at = std::exchange(first_, nullptr); at;) {
    auto& freed = *at;
    at = freed.next;
    auto& timeline = *freed.stream;
    bool const given = now && &now->timeline() == &timeline && now->has_handle();
    auto const ended = !timeline.is_mortal() ? timeline.current_epoch()
                       : given               ? now->end_use(freed.bytes, true)
                                             : timeline.end_use_in_capture();
    parts_.rules.prune(freed.uses);
    if (freed.uses.add({&timeline, ended})) {
      timeline.release();
      frees_.free_block(freed);
    } else {
      freed.next = std::exchange(first_, &freed);
    }
  }
  parts_.mode.set_deferred_frees(any());
  parts_.notify();
}

} // namespace gpumem::detail
