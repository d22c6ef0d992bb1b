// Passes calls about pages on to the pool's backend, which maps and unmaps them, under the locks of all shards.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
module gpumem:page_calls.impl;
import :page_calls;
import :cache_limits;
import :device;
import :error;
import :growth_lock;
import :page_store;
import :pool_backend;
import :pool_mode;
import :pool_parts;
import :request_queue;
import :shard_list;
import :thread_caches;
import :waiter;

namespace gpumem::detail {

bool page_calls::pin(void const* pointer, std::size_t bytes) {
  upstream_call::throw_if_here(parts_.shards);
  all_shards_lock const held{parts_.shards};
  return parts_.backend.pin(pointer, bytes);
}

void page_calls::unpin(void const* pointer, std::size_t bytes) {
  upstream_call::throw_if_here(parts_.shards);
  woken_waiters woken;
  all_shards_lock const held{parts_.shards};
  parts_.backend.unpin(pointer, bytes);
  parts_.requests.count_change();
  queue_.wake_next(woken);
}

void page_calls::open_to(device peer) {
  upstream_call::throw_if_here(parts_.shards);
  all_shards_lock const held{parts_.shards};
  check(parts_.backend.open_to(peer), "cuMemSetAccess");
  parts_.caches.add_devices(cache_limits::bit_of(peer.ordinal()));
}

expected<exported_page, failure> page_calls::export_page(void const* pointer) {
  if (upstream_call::runs_here(parts_.shards)) return unexpected<failure>{failure_of(broken_rule::inside_growth, 0)};
  all_shards_lock const held{parts_.shards};
  return parts_.backend.export_page(pointer);
}

} // namespace gpumem::detail
