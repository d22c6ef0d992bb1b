// Asking others to free memory for requests that wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
module gpumem:pool_pressure.impl;
import :pool_backend;
import :pool_engine;
import :pressure_call;
import :shard_list;
import :waiter;

namespace gpumem::detail {

void pool_engine::add_pressure_call(pressure_call& item) {
  all_shards_lock const held{shards_};
  pressure_list_.add(item);
  pressure_list_.on_park();
  schedule_poll();
}

void pool_engine::remove_pressure_call(pressure_call& item) noexcept {
  all_shards_lock const held{shards_};
  pressure_list_.remove(item);
  schedule_poll();
}

// Bytes that requests wait for and could not have now. Where bytes enough lie in pieces: what the first asks for.
std::size_t pool_engine::wanted() const noexcept {
  auto const* const first = queue_.next_waiting();
  if (!first || !has_waiting()) return 0;
  auto const could_have = headroom();
  auto const waiting = queue_.waiting_bytes();
  return waiting > could_have ? waiting - could_have : first->bytes();
}

// By the library thread.
void pool_engine::call_pressure() noexcept {
  for (;;) {
    pressure_call* next = nullptr;
    {
      all_shards_lock const held{shards_};
      if (wanted() > 0) next = pressure_list_.begin_next();
    }
    if (!next) return;
    next->post();
  }
}

std::size_t pool_engine::begin_pressure(pressure_call& call) noexcept {
  all_shards_lock const held{shards_};
  auto const bytes = wanted();
  pressure_list_.on_begin(call, bytes, change_count());
  return bytes;
}

void pool_engine::end_pressure(pressure_call& call, std::size_t freed) noexcept {
  all_shards_lock const held{shards_};
  pressure_list_.on_end(call, freed, change_count());
  schedule_poll();
}

} // namespace gpumem::detail
