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

upstream_call::upstream_call(shard_list& of) noexcept : unlocked_{of}, of_{of}, outer_{innermost_call} {
  innermost_call = this;
}

upstream_call::~upstream_call() { innermost_call = outer_; }

bool upstream_call::runs_here(shard_list const& of) noexcept {
  auto const* each = innermost_call;
  while (each && &each->of_ != &of) each = each->outer_;
  return each;
}

void upstream_call::throw_if_here(shard_list const& of) {
  if (runs_here(of)) throw rule_error{broken_rule::inside_growth, "pool"};
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

namespace {

std::optional<device> device_of(pool_upstream const& upstream) {
  auto const ordinal = upstream.device();
  return ordinal < 0 ? std::nullopt : std::optional{device{ordinal}};
}

} // namespace

backend_parts::backend_parts(pool_upstream& from, pool_options const& asked, reuse_rules& reuse, chunk_list& all,
                             shard_list& pool, reserved_observer& watcher)
    : upstream{from}, options{asked}, where{device_of(from)}, rules{reuse}, chunks{all}, shards{pool},
      observer{watcher},
      growth{all, pool, reuse, from.paged() ? std::max(smallest_page, from.pages()->granularity()) : smallest_page},
      lock{pool} {}

void backend_parts::note_failure(failure const& why) const noexcept {
  if (where && why.reason == outcome::device_lost) where->mark_lost(static_cast<CUresult>(why.code));
}

void backend_parts::count_growth(pool_shard& into, std::size_t bytes) noexcept {
  into.reserved += bytes;
  ++into.counts.upstream_allocations;
  observer.on_reserved_changed();
}

} // namespace gpumem::detail
