// Waits for other threads that grow the pool or release memory, and finds out whether the upstream is called now.
// SPDX-License-Identifier: Apache-2.0
module;
module gpumem:growth_lock.impl;
import :growth_lock;
import :chunk_list;
import :error;
import :shard_list;
import :sync;

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

} // namespace gpumem::detail
