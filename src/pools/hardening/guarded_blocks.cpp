// Writes and checks guards and patterns, keeps the blocks and their history, and explains wrong frees.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>
module gpumem:guarded_blocks.impl;
import :guarded_blocks;
import :cuda;
import :device;
import :driver;
import :misuse;
import :pool_parts;
import :pool_reports;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

// While an object of this class lives, driver calls of its thread count as the pool's own. The simulated driver of the
// tests reports accesses to memory that is not allocated; this class exempts the pool's fills and copies.
class own_work {
public:
  own_work() noexcept { tell(1); }
  ~own_work() { tell(0); }
  own_work(own_work const&) = delete;
  own_work& operator=(own_work const&) = delete;

private:
  static void tell(int begins) noexcept {
    static auto* const told = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "gpumem_simulator_own_work"));
    if (told) told(begins);
  }
};

template <class Call> bool enqueue(stream_key const& key, Call call) noexcept {
  if (!driver_alive()) return false;
  try {
    device const device{key.identity().timeline().device()};
    device_guard const scope{device};
    own_work const ours;
    return !device.lost() && device.interpret(call()) == CUDA_SUCCESS;
  } catch (...) { return false; }
}

CUdeviceptr address(char const* pointer) noexcept { return reinterpret_cast<CUdeviceptr>(pointer); }

} // namespace

bool fill(stream_key const& key, byte_run run, fill_pattern pattern) noexcept {
  if (run.bytes == 0) return true;
  return enqueue(key, [&] {
    return driver().memset_d8_async(address(run.data), static_cast<unsigned char>(pattern), run.bytes,
                                    key.identity().handle());
  });
}

void fill_by_host(byte_run run, fill_pattern pattern) noexcept {
  if (run.bytes) std::memset(run.data, static_cast<unsigned char>(pattern), run.bytes);
}

bool read_back(stream_key const& key, byte_run run, char* buffer) noexcept {
  if (run.bytes == 0) return true;
  return enqueue(
      key, [&] { return driver().memcpy_dtoh_async(buffer, address(run.data), run.bytes, key.identity().handle()); });
}

// Usually all bytes are right. So the first byte is compared with the pattern, and then each byte with the next one by
// a single memcmp.
corruption compare(char const* data, std::size_t bytes, fill_pattern pattern) noexcept {
  auto const right = static_cast<unsigned char>(pattern);
  auto const wrong = [&](std::size_t i) { return static_cast<unsigned char>(data[i]) != right; };
  if (bytes == 0 || (!wrong(0) && std::memcmp(data, data + 1, bytes - 1) == 0)) return {};
  corruption found;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (!wrong(i)) continue;
    if (found.bytes++ == 0) found.first = i;
    found.last = i;
  }
  return found;
}

namespace {

bool covers(block_event const& event, void const* address) noexcept {
  auto const begin = reinterpret_cast<std::uintptr_t>(event.pointer);
  return reinterpret_cast<std::uintptr_t>(address) - begin < event.bytes;
}

} // namespace

void block_history::record(block_event::kind kind, void const* pointer, std::size_t bytes,
                           std::uint64_t stream) noexcept {
  auto const sequence = ++recorded_;
  if (ring_.empty()) return;
  ring_[sequence % ring_.size()] = {kind, sync::thread_index(), sequence, stream, pointer, bytes};
}

// Visits the events, the newest first, until `visit` returns false.
template <class Visit> void block_history::visit_newest_first(Visit visit) const {
  auto const kept = std::min<std::uint64_t>(recorded_, ring_.size());
  for (std::uint64_t i = 0; i < kept; ++i) {
    if (!visit(ring_[(recorded_ - i) % ring_.size()])) return;
  }
}

std::size_t block_history::newest(void const* address, block_event* events, std::size_t max_events) const noexcept {
  std::size_t found = 0;
  visit_newest_first([&](block_event const& each) {
    if (covers(each, address)) events[found++] = each;
    return found < max_events;
  });
  std::reverse(events, events + found);
  return found;
}

std::vector<block_event> block_history::all(void const* address) const {
  std::vector<block_event> found;
  visit_newest_first([&](block_event const& each) {
    if (covers(each, address)) found.push_back(each);
    return true;
  });
  std::ranges::reverse(found);
  return found;
}

block_event const* block_history::last_free(void const* pointer, std::optional<std::size_t> bytes) const noexcept {
  block_event const* found = nullptr;
  visit_newest_first([&](block_event const& each) {
    bool const right = each.what == block_event::kind::freed && each.pointer == pointer;
    if (right && (!bytes || *bytes == each.bytes)) found = &each;
    return !found;
  });
  return found;
}

namespace {

// The number of the user's bytes that are checked at the start and at the end. All bytes of a small block count as its
// start.
struct ends {
  std::size_t begin, end;
};
ends ends_of(guarded_block const& block, guard_layout const& layout) noexcept {
  if (block.bytes <= layout.poison) return {block.bytes, 0};
  return {layout.poison / 2, layout.poison / 2};
}

void add(corruption& sum, corruption const& part, std::size_t offset) noexcept {
  if (part.bytes == 0) return;
  if (sum.bytes == 0) sum.first = offset + part.first;
  sum.bytes += part.bytes;
  sum.last = offset + part.last;
}

} // namespace

std::array<byte_run, 2> guarded_block::all(guard_layout const& layout) const noexcept {
  auto const [begin, end] = ends_of(*this, layout);
  if (begin == bytes) return {{{user - layout.guard, layout.guard + bytes + tail()}, {}}};
  return {{{user - layout.guard, layout.guard + begin}, {user + bytes - end, end + tail()}}};
}

std::array<byte_run, 2> guarded_block::inside(guard_layout const& layout) const noexcept {
  auto const [begin, end] = ends_of(*this, layout);
  return {{{user, begin}, {user + bytes - end, end}}};
}

std::array<byte_run, 2> guarded_block::guards(guard_layout const& layout) const noexcept {
  return {{{user - layout.guard, layout.guard}, {user + bytes, tail()}}};
}

void guarded_block::check(guard_layout const& layout, char const* data) noexcept {
  auto const [begin, end] = ends_of(*this, layout);
  auto const* const first = data + layout.guard;
  check({data, first, first + begin, first + begin + end}, layout);
}

void guarded_block::check_in_place(guard_layout const& layout) noexcept {
  auto const end = ends_of(*this, layout).end;
  check({user - layout.guard, user, user + bytes - end, user + bytes}, layout);
}

void guarded_block::check(pieces const& pieces, guard_layout const& layout) noexcept {
  auto const [begin, end] = ends_of(*this, layout);
  report = {};
  if (guards_filled) {
    add(report.underrun, compare(pieces.front_guard, layout.guard, fill_pattern::guard), 0);
    add(report.overrun, compare(pieces.tail_guard, tail(), fill_pattern::guard), 0);
  }
  if (!poisoned) return;
  add(report.after_free, compare(pieces.begin, begin, fill_pattern::poison), 0);
  add(report.after_free, compare(pieces.end, end, fill_pattern::poison), bytes - end);
}

void guarded_blocks::add(std::unique_ptr<guarded_block> guarded) {
  auto const address = reinterpret_cast<std::uintptr_t>(guarded->user);
  blocks_.emplace(address, std::move(guarded));
}

void guarded_blocks::make_live(guarded_block& fresh) noexcept {
  fresh.live = true;
  ++allocations_;
  live_ += fresh.bytes;
  peak_live_ = std::max(peak_live_, live_);
  history_.record(block_event::kind::allocated, fresh.user, fresh.bytes, fresh.stream);
}

guarded_block* guarded_blocks::end_life(void const* pointer, std::optional<std::size_t> bytes,
                                        std::uint64_t stream) noexcept {
  auto* const found = find_live(pointer);
  if (!found || (bytes && *bytes != found->bytes)) return nullptr;
  found->live = false;
  found->freed_on = stream;
  live_ -= found->bytes;
  ++frees_;
  history_.record(block_event::kind::freed, pointer, found->bytes, stream);
  return found;
}

void guarded_blocks::remove(guarded_block const& outgoing) noexcept {
  blocks_.erase(reinterpret_cast<std::uintptr_t>(outgoing.user));
}

guarded_block* guarded_blocks::find_containing(void const* pointer) noexcept {
  // The map is ordered by the addresses that users have, but a block starts with a guard before its user's bytes. So
  // the block with the next higher address may hold the pointer.
  auto above = blocks_.upper_bound(reinterpret_cast<std::uintptr_t>(pointer));
  if (above != blocks_.end() && above->second->holds(pointer)) return above->second.get();
  if (above == blocks_.begin()) return nullptr;
  auto& below = *std::prev(above)->second;
  return below.holds(pointer) ? &below : nullptr;
}

guarded_block* guarded_blocks::find_live(void const* pointer) noexcept {
  auto* const found = find_containing(pointer);
  return found && found->user == pointer && found->live ? found : nullptr;
}

live_blocks guarded_blocks::all_live() const {
  live_blocks found;
  for (auto const& [user, one] : blocks_) {
    if (one->live) found.add({one->user, one->bytes, one->allocated, one->stream, true});
  }
  return found;
}

// The misuse is a double free if the block at the pointer is freed already, or if the history has a free of the
// pointer. If a live block starts at the pointer, that earlier free must also have had this size; otherwise the size is
// wrong.
misuse guarded_blocks::explain(void const* pointer, std::optional<std::size_t> bytes) noexcept {
  auto const* const found = find_containing(pointer);
  misuse wrong{misuse::kind::foreign_pointer, pointer, bytes.value_or(0), found ? found->bytes : 0};
  if (found && found->user == pointer) {
    bool const stale = !found->live || history_.last_free(pointer, bytes);
    wrong.what = stale ? misuse::kind::double_free : misuse::kind::wrong_size;
  } else if (auto const* const before = history_.last_free(pointer, std::nullopt)) {
    wrong.what = misuse::kind::double_free;
    wrong.expected = before->bytes;
  }
  return wrong;
}

void guarded_blocks::amend(statistics& statistics) const noexcept {
  statistics.live = live_;
  statistics.peak_live = peak_live_;
  statistics.allocations = allocations_;
  statistics.frees = frees_;
}

} // namespace gpumem::detail
