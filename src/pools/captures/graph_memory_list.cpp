// The graph memories of a pool, and which of them has a block.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <optional>
module gpumem:graph_memory_list.impl;
import :graph_memory;
import :intrusive_list;
import :misuse;
import :pool_reports;
import :stream;
import :sync;

namespace gpumem::detail {

void graph_memory_list::add(graph_memory& one) noexcept {
  sync::lock const held{mutex_};
  if (one.listed_in_) return;
  one.listed_in_ = this;
  items_.push_back(one);
  any_.store(true, std::memory_order_relaxed);
}

void graph_memory_list::remove(graph_memory& one) noexcept {
  sync::lock const held{mutex_};
  items_.remove(one);
  any_.store(!items_.empty(), std::memory_order_relaxed);
}

// Until drop_live() the freed block keeps its graph memory alive, so drop_live() needs no lock.
bool graph_memory_list::free(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  late_misuse wrong;
  graph_memory* owner = nullptr;
  {
    sync::lock const held{mutex_};
    for (auto* each = items_.first(); each && !owner; each = each->links_.next) {
      auto const result = each->free(key, pointer, bytes, wrong);
      if (result == graph_memory::free_outcome::refused) return true;
      if (result == graph_memory::free_outcome::done) owner = each;
    }
  }
  if (!owner) return false;
  owner->drop_live();
  return true;
}

std::optional<block_info> graph_memory_list::find(void const* pointer) noexcept {
  sync::lock const held{mutex_};
  for (auto* each = items_.first(); each; each = each->links_.next) {
    if (auto found = each->find(pointer)) return found;
  }
  return std::nullopt;
}

std::optional<owned_block> graph_memory_list::find_owned(void const* pointer) noexcept {
  sync::lock const held{mutex_};
  for (auto* each = items_.first(); each; each = each->links_.next) {
    if (auto const found = each->find_owned(pointer)) return found;
  }
  return std::nullopt;
}

bool graph_memory_list::record_use(stream_key const& key, void const* pointer) noexcept {
  late_misuse wrong;
  sync::lock const held{mutex_};
  for (auto* each = items_.first(); each; each = each->links_.next) {
    if (each->declare_use(key, pointer, wrong)) return true;
  }
  return false;
}

} // namespace gpumem::detail
