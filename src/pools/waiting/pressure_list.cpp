// Decides which pressure callback is called next.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
module gpumem:pressure_list.impl;
import :pressure_list;
import :executor;
import :pressure_call;
import :sync;

namespace gpumem::detail {

void pressure_list::remove(pressure_call& item) noexcept { std::erase(calls_, &item); }

bool pressure_list::pending() const noexcept {
  return std::ranges::any_of(calls_, [this](pressure_call const* each) {
    assert_shard_held();
    return each->busy_ || is_due(*each);
  });
}

bool pressure_list::due() const noexcept {
  return std::ranges::any_of(calls_, [this](pressure_call const* each) {
    assert_shard_held();
    return is_due(*each);
  });
}

pressure_call* pressure_list::begin_next() noexcept {
  auto const found = std::ranges::find_if(calls_, [this](pressure_call const* each) {
    assert_shard_held();
    return is_due(*each);
  });
  if (found == calls_.end()) return nullptr;
  auto& next = **found;
  next.busy_ = true;
  sync::lock const held{next.mutex_};
  next.self_ = next.shared_from_this();
  return &next;
}

// If no bytes are wanted, the caller does not run the function, and it stays due. It may be needed soon: a waiting
// request that now tries again may still be refused.
void pressure_list::on_begin(pressure_call& item, std::size_t wanted, std::uint64_t change_count) noexcept {
  if (wanted == 0) return;
  item.freed_some_ = false;
  item.parks_ = parks_;
  item.change_count_ = change_count;
}

void pressure_list::on_end(pressure_call& item, std::size_t freed, std::uint64_t change_count) noexcept {
  item.busy_ = false;
  if (freed > 0) item.freed_some_ = change_count != item.change_count_;
}

} // namespace gpumem::detail
