// Waits for other threads that grow the pool or release memory.
// SPDX-License-Identifier: Apache-2.0
module;
module gpumem:growth_lock.impl;
import :growth_lock;
import :chunk_list;
import :shard_list;
import :sync;

namespace gpumem::detail {

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
