// Statistics of a pool, searches for its blocks, and bytes outside the pool that its limit counts.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <optional>
#include <string>
#include <vector>
module gpumem:pool_queries.impl;
import :pool_base;
import :block;
import :driver;
import :error;
import :graph_memory;
import :hardening;
import :pass_through;
import :pool_captures;
import :pool_engine;
import :pool_reports;
import :process;
import :request_queue;
import :resource;
import :shard_list;
import :stream;
import :stream_timeline;

namespace gpumem::detail {
namespace {

// Returns a key of the stream for which a block was allocated. The stream still lives, so a free can use its handle. On
// a mortal stream the free records an event, because perhaps no later call gets the handle.
inline stream_key key_of_owner(stream_timeline& timeline) noexcept {
  auto const key = stream_key::of(timeline, timeline.handle());
  if (timeline.owns_handle()) [[likely]]
    return key;
  return timeline.is_mortal() ? stream_key::at_end_of(timeline, timeline.handle()) : key.by_identity();
}

} // namespace

statistics pool_state::read_statistics() {
  if (forked()) return {};
  if (pass_through_) return pass_through_->read_statistics();
  auto const seen = engine_->statistics().read();
  return hardening_ ? hardening_->amend(seen) : seen;
}

std::string pool_state::describe_waiting() {
  return forked() ? std::string{} : engine_->requests().describe(engine_->passes(), read_statistics().live);
}

std::string pool_state::describe_memory() { return forked() ? std::string{} : engine_->describe_memory(); }

void pool_state::reset_peaks() {
  if (forked()) return;
  if (pass_through_) return pass_through_->reset_peaks();
  if (hardening_) hardening_->reset_peaks();
  engine_->reset_peaks();
}

std::optional<owned_block> pool_state::find_owned(void const* pointer) {
  if (captures_.memories().any()) [[unlikely]] {
    if (auto const in_graph = captures_.memories().find_owned(pointer)) return in_graph;
  }
  if (pass_through_) return pass_through_->find_owned(pointer);
  return hardening_ ? hardening_->find_owned(pointer) : engine_->find_owned(pointer);
}

std::optional<std::size_t> pool_state::try_deallocate(void* pointer) noexcept {
  if (!pointer || !may_free()) return std::nullopt;
  auto const seen = engine_->find_in_own_shard(pointer);
  if (seen.that && seen.that->is_live() && !special_) [[likely]] {
    std::size_t const bytes = seen.that->requested;
    auto const key = key_of_owner(*seen.that->stream);
    auto const cached = engine_->try_cache(key, seen, bytes);
    if (!cached.done()) finish_in_pool(key, pointer, bytes, cached);
    return bytes;
  }
  auto const found = find_owned(pointer);
  if (!found) return std::nullopt;
  free(key_of_owner(*found->stream), pointer, found->bytes);
  return found->bytes;
}

std::optional<block_info> pool_state::find(void const* pointer) {
  if (forked()) return std::nullopt;
  if (auto const in_graph = captures_.memories().find(pointer)) return in_graph;
  if (pass_through_) return pass_through_->find(pointer);
  auto const guarded = hardening_ ? hardening_->find(pointer) : std::nullopt;
  return guarded ? guarded : engine_->statistics().find(pointer);
}

std::vector<block_event> pool_state::history(void const* pointer) {
  if (!hardening_ || forked()) return {};
  return hardening_->history(pointer);
}

live_blocks pool_state::find_live() {
  if (pass_through_) return pass_through_->find_live();
  return hardening_ ? hardening_->find_live() : engine_->statistics().find_live();
}

std::vector<memory_range> pool_state::memory_map() {
  if (forked()) return std::vector<memory_range>{};
  return pass_through_ ? pass_through_->memory_map() : engine_->statistics().memory_map();
}

bool pool_state::add_outside(std::size_t bytes) {
  if (!driver_alive() || forked()) return false;
  if (engine_->add_outside(bytes)) return true;
  if (!hardening_) return false;
  hardening_->flush(); // quarantined blocks may lie in memory that can go back
  return engine_->add_outside(bytes);
}

void pool_state::remove_outside(std::size_t bytes) {
  if (!forked()) engine_->remove_outside(bytes);
}

} // namespace gpumem::detail
