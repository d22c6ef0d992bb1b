// Asking others to free memory for requests that wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
module gpumem:pool_pressure.impl;
import :pool_engine;
import :chunks;
import :pool_supply;
import :pressure;
import :shards;
import :waiter;

namespace gpumem::detail {

void pool_engine::add_pressure_call(pressure_call& item) {
  shard_locks const held{shards_};
  pressure_calls_.add(item);
  pressure_calls_.note_park();
  look_later();
}

void pool_engine::remove_pressure_call(pressure_call& item) noexcept {
  shard_locks const held{shards_};
  pressure_calls_.remove(item);
  look_later();
}

// Bytes that requests wait for and could not have now. Where bytes enough lie in pieces: what the first asks for.
std::size_t pool_engine::wanted() const noexcept {
  auto const* const first = queue_.next_waiting();
  if (!first || !has_waiting()) return 0;
  auto const could_have = room();
  auto const waiting = queue_.waiting_bytes();
  return waiting > could_have ? waiting - could_have : first->bytes();
}

// By the library thread.
void pool_engine::call_pressure() noexcept {
  for (;;) {
    pressure_call* next = nullptr;
    {
      shard_locks const held{shards_};
      if (wanted() > 0) next = pressure_calls_.begin_next();
    }
    if (!next) return;
    next->post();
  }
}

std::size_t pool_engine::begin_pressure(pressure_call& call) noexcept {
  shard_locks const held{shards_};
  auto const bytes = wanted();
  pressure_calls_.note_begin(call, bytes, news());
  return bytes;
}

void pool_engine::end_pressure(pressure_call& call, std::size_t freed) noexcept {
  shard_locks const held{shards_};
  pressure_calls_.note_end(call, freed, news());
  look_later();
}

} // namespace gpumem::detail
