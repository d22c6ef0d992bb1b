// Takes all blocks out of the caches of all threads, and sums the counts of the caches.
// SPDX-License-Identifier: Apache-2.0
module gpumem:thread_caches.impl;
import :thread_caches;
import :block;
import :cache_limits;
import :sync;
import :thread_cache;

namespace gpumem::detail {

thread_caches::thread_caches() noexcept {
  for (unsigned i = 0; i < biased_caches; ++i) caches_[i].mutex.enable_bias();
}

block* thread_caches::flush() noexcept {
  block* all = nullptr;
  limits_.reset_exhausted();
  with_all_locked([&] {
    for (auto& each : caches_) {
      each.mutex.assert_held();
      all = each.flush(limits_, all);
    }
  });
  return all;
}

cache_counts thread_caches::snapshot() const noexcept {
  cache_counts all;
  for (auto const& each : caches_) each.add_to(all);
  return all;
}

} // namespace gpumem::detail
