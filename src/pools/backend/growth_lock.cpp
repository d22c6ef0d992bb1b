// Waits for other threads that grow the pool.
// SPDX-License-Identifier: Apache-2.0
module;
module gpumem:growth_lock.impl;
import :growth_lock;
import :chunk_list;
import :shard_list;
import :sync;

namespace gpumem::detail {

bool growth_lock::wait(all_shards_lock& held) {
  bool const any = taken_;
  while (taken_) held.wait(changed_);
  return any;
}

void growth_lock::begin(all_shards_lock& held) noexcept {
  taken_ = true;
  held.unlock();
}

void growth_lock::end() noexcept {
  taken_ = false;
  changed_.notify_all();
}

void growth_lock::wait_for_release(chunk_list const& chunks, all_shards_lock& held) {
  auto const before = chunks.releasing();
  while (chunks.releasing() == before) held.wait(changed_);
}

} // namespace gpumem::detail
