// The objects that a pool uses to get memory from its upstream, and waits for other threads that grow the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <optional>
module gpumem:backend_parts.impl;
import :backend_parts;
import :chunk_list;
import :cuda;
import :device;
import :error;
import :growth_policy;
import :page_store;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :reuse_rules;
import :shard_list;
import :sync;
import :virtual_pages;

namespace gpumem::detail {
namespace {

thread_local upstream_call const* innermost_call = nullptr;

} // namespace

upstream_call::upstream_call(shard_list& shards) noexcept : unlocked_{shards}, of_{shards}, outer_{innermost_call} {
  innermost_call = this;
}

upstream_call::~upstream_call() { innermost_call = outer_; }

bool upstream_call::runs_here(shard_list const& shards) noexcept {
  auto const* each = innermost_call;
  while (each && &each->of_ != &shards) each = each->outer_;
  return each;
}

void upstream_call::throw_if_here(shard_list const& shards) {
  if (runs_here(shards)) throw rule_error{broken_rule::inside_growth, "pool"};
}

bool growth_lock::wait() {
  bool const any = taken_;
  while (taken_) shards_.wait(changed_);
  return any;
}

void growth_lock::begin() noexcept { taken_ = true; }

void growth_lock::end() noexcept {
  taken_ = false;
  changed_.notify_all();
}

void growth_lock::wait_for_release(chunk_list const& chunks) {
  auto const before = chunks.releasing();
  while (chunks.releasing() == before) shards_.wait(changed_);
}

backend_parts::backend_parts(pool_upstream& upstream, pool_options const& options, std::optional<device> where,
                             reuse_rules& reuse, chunk_list& chunks, shard_list& pool, reserved_observer& watcher)
    : upstream{upstream}, options{options}, where{where}, rules{reuse}, chunks{chunks}, shards{pool}, observer{watcher},
      growth{chunks, pool, reuse,
             upstream.paged() ? std::max(smallest_page, upstream.pages()->granularity()) : granule},
      lock{pool} {}

void backend_parts::note_failure(failure const& failure) const noexcept {
  if (where && failure.reason == outcome::device_lost) where->mark_lost(static_cast<CUresult>(failure.code));
}

void backend_parts::count_growth(pool_shard& shard, std::size_t bytes) noexcept {
  shard.reserved += bytes;
  ++shard.counts.upstream_allocations;
  observer.on_reserved_changed();
}

} // namespace gpumem::detail
