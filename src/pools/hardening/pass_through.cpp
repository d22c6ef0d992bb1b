// Passes each allocation and each free of a pool to its upstream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>
#include <vector>
module gpumem:pass_through.impl;
import :pass_through;
import :block;
import :block_calls;
import :cuda;
import :driver;
import :error;
import :memory_walk;
import :misuse;
import :pool_engine;
import :pool_options;
import :pool_reports;
import :pool_upstream;
import :process;
import :reuse_rules;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

std::uintptr_t address_of(void const* pointer) noexcept { return reinterpret_cast<std::uintptr_t>(pointer); }

// Makes the stream wait for the uses. If that fails, the host waits for them, for at most 60 times
// `tuning::max_host_wait`.
void order_after(stream_uses const& uses, stream_key const& key) noexcept {
  if (uses.completed()) return;
  try {
    if (!key.identity().is_host() && key.identity().has_handle() && !key.identity().capturing() &&
        reuse_rules::wait_for(uses, key))
      return;
    std::vector<stream_timeline*> open;
    for (auto const& use : uses) open.push_back(use.timeline);
    for (int tries = 0; tries < 60 && driver_alive() && !wait_for_streams(open, tuning::max_host_wait); ++tries) {}
  } catch (...) {} // there is no wait: the host has no memory, or the device is lost
}

} // namespace

bool passes_through(bool asked) { return is_set_in_environment("GPUMEM_PASS_THROUGH") || asked; }

expected<void*, failure> pass_through::try_allocate(stream_key const& key, std::size_t bytes,
                                                    std::size_t alignment) noexcept {
  auto const largest = engine_.options().largest_block;
  expected<void*, failure> result = unexpected<failure>{failure{outcome::closed, 0, bytes}};
  if (largest && bytes > size_class::of(largest).bytes && !key.context().for_chunk()) {
    result = unexpected<failure>{failure{outcome::too_large, 0, bytes}};
  } else if (!engine_.refuses()) {
    result = engine_.upstream().allocate_exact(key, bytes, alignment);
  }
  try {
    sync::lock const lock{mutex_};
    if (result) {
      live_.insert_or_assign(address_of(*result),
                             block{bytes, alignment, key.identity().id(), &key.identity().timeline(), {}});
      ++held_;
      ++counts_.allocations;
      counts_.reserved_in_all += bytes;
      counts_.live += bytes;
      counts_.peak_live = std::max(counts_.peak_live, counts_.live);
      return result;
    }
    counts_.failures += key.context().ends_if(result.error().reason);
  } catch (std::bad_alloc const&) {
    engine_.upstream().deallocate_exact(key, *result, bytes, alignment);
    return unexpected<failure>{no_host_memory(bytes)};
  }
  return unexpected<failure>{failure{result.error().reason, result.error().code, bytes}};
}

// Checks a free and removes the block's record. The caller frees the block only afterwards, because after the free
// another thread can get the same address.
pass_through::block_map::node_type pass_through::take(stream_key const& key, void* pointer,
                                                      std::optional<std::size_t> bytes) noexcept {
  misuse wrong{misuse::kind::foreign_pointer, pointer, bytes.value_or(0), 0, key.identity().id(),
               engine_.options().name.c_str()};
  {
    sync::lock const lock{mutex_};
    auto const entry = live_.find(address_of(pointer));
    if (entry != live_.end() && (!bytes || *bytes == entry->second.bytes)) {
      remember(pointer);
      ++counts_.frees;
      counts_.live -= entry->second.bytes;
      return live_.extract(entry);
    }
    if (entry != live_.end()) {
      wrong.what = misuse::kind::wrong_size;
      wrong.expected = entry->second.bytes;
    } else if (std::ranges::find(freed_, pointer) != freed_.end()) {
      wrong.what = misuse::kind::double_free;
    }
  }
  report_misuse(wrong);
  return {};
}

void pass_through::remember(void* pointer) noexcept {
  freed_[next_freed_] = pointer;
  next_freed_ = (next_freed_ + 1) % remembered;
}

void pass_through::deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto const freed = take(key, pointer, bytes);
  if (!freed) return;
  auto const& was = freed.mapped();
  order_after(was.uses, key);
  engine_.upstream().deallocate_exact(key, pointer, was.bytes, was.alignment);
  end_free();
}

void pass_through::end_free() noexcept {
  bool last = false;
  {
    sync::lock const lock{mutex_};
    last = --held_ == 0 && no_handles_;
  }
  if (last) end();
}

void pass_through::drop_last_handle() noexcept {
  engine_.refuse_requests();
  bool last = false;
  {
    sync::lock const lock{mutex_};
    no_handles_ = true;
    last = held_ == 0;
  }
  if (last) end();
}

void pass_through::record_use(stream_key const& key, void* pointer) {
  key.identity().timeline().prepare();
  auto const end_use = [&key](std::size_t bytes) {
    auto const recorded =
        key.identity().has_handle() ? key.identity().timeline().record_at_free(key.identity().handle()) : epoch{0};
    return stream_use{&key.identity().timeline(), recorded ? recorded : key.identity().end_use(bytes, true)};
  };
  auto wrong = misuse::kind::foreign_pointer;
  {
    sync::lock const lock{mutex_};
    auto const found = live_.find(address_of(pointer));
    if (found != live_.end()) {
      auto& [bytes, alignment, stream, timeline, uses, label] = found->second;
      uses.prune();
      if (uses.add(end_use(bytes))) return;
      order_after(uses, key);
      return uses.assign(end_use(bytes)); // end_use() runs after the waits, so the new use covers the earlier ones too
    }
    if (std::ranges::find(freed_, pointer) != freed_.end()) wrong = misuse::kind::recorded_late;
  }
  report_misuse({wrong, pointer, 0, 0, key.identity().id(), engine_.options().name.c_str()});
}

std::optional<block_info> pass_through::find(void const* pointer) {
  sync::lock const lock{mutex_};
  auto after = live_.upper_bound(address_of(pointer));
  if (after == live_.begin()) return std::nullopt;
  auto const& [base, found] = *--after;
  if (address_of(pointer) - base >= found.bytes) return std::nullopt;
  return block_info{reinterpret_cast<void*>(base), found.bytes, found.bytes, found.stream, true};
}

std::optional<owned_block> pass_through::find_owned(void const* pointer) {
  sync::lock const lock{mutex_};
  auto const found = live_.find(address_of(pointer));
  if (found == live_.end()) return std::nullopt;
  return owned_block{found->second.bytes, found->second.timeline};
}

void pass_through::reset_peaks() {
  sync::lock const lock{mutex_};
  counts_.peak_live = counts_.live;
}

live_blocks pass_through::find_live() {
  sync::lock const lock{mutex_};
  live_blocks found;
  for (auto const& [base, one] : live_)
    found.add({reinterpret_cast<void*>(base), one.bytes, one.bytes, one.stream, true});
  return found;
}

bool pass_through::set_label(void const* pointer, std::uint32_t label) noexcept {
  sync::lock const lock{mutex_};
  auto const found = live_.find(address_of(pointer));
  if (found == live_.end()) return false;
  found->second.label = label;
  return true;
}

memory_copy pass_through::copy_memory() {
  memory_copy copy;
  copy.statistics = read_statistics();
  sync::lock const lock{mutex_};
  for (auto const& [base, one] : live_) {
    copy.blocks.push_back({.base = reinterpret_cast<void*>(base),
                           .bytes = one.bytes,
                           .requested = one.bytes,
                           .stream = one.stream,
                           .label = one.label,
                           .state = memory_state::live,
                           .begins_region = true});
  }
  copy.pieces = 1;
  return copy;
}

std::vector<memory_range> pass_through::memory_map() {
  sync::lock const lock{mutex_};
  std::vector<memory_range> map;
  for (auto const& [base, one] : live_) {
    auto* const pointer = reinterpret_cast<void*>(base);
    map.push_back({pointer, one.bytes, one.bytes, one.stream, true, pointer, one.bytes});
  }
  return map;
}

statistics pass_through::read_statistics() {
  sync::lock const lock{mutex_};
  auto now = counts_;
  now.allocated = now.reserved = now.live;
  now.peak_reserved = now.peak_live;
  now.failures += engine_.requests().failures();
  now.largest_block = engine_.options().largest_block;
  return now;
}

} // namespace gpumem::detail
