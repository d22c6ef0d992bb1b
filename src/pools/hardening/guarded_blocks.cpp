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

template <class Call> bool enqueue(stream_key const& on, Call call) noexcept {
  if (!driver_alive()) return false;
  try {
    device const where{on.timeline().device()};
    device_guard const scope{where};
    own_work const ours;
    return !where.lost() && where.interpret(call()) == CUDA_SUCCESS;
  } catch (...) { return false; }
}

CUdeviceptr address(char const* pointer) noexcept { return reinterpret_cast<CUdeviceptr>(pointer); }

} // namespace

bool fill(stream_key const& on, byte_run what, fill_pattern with) noexcept {
  if (what.bytes == 0) return true;
  return enqueue(on, [&] {
    return driver().memset_d8_async(address(what.data), static_cast<unsigned char>(with), what.bytes, on.handle());
  });
}

void fill_by_host(byte_run what, fill_pattern with) noexcept {
  if (what.bytes) std::memset(what.data, static_cast<unsigned char>(with), what.bytes);
}

bool read_back(stream_key const& on, byte_run what, char* into) noexcept {
  if (what.bytes == 0) return true;
  return enqueue(on, [&] { return driver().memcpy_dtoh_async(into, address(what.data), what.bytes, on.handle()); });
}

// Usually all bytes are right. So the first byte is compared with the pattern, and then each byte with the next one by
// a single memcmp.
corruption compare(char const* data, std::size_t bytes, fill_pattern with) noexcept {
  auto const right = static_cast<unsigned char>(with);
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

void block_history::record(block_event::kind what, void const* pointer, std::size_t bytes,
                           std::uint64_t stream) noexcept {
  auto const sequence = ++recorded_;
  if (ring_.empty()) return;
  ring_[sequence % ring_.size()] = {what, sync::thread_index(), sequence, stream, pointer, bytes};
}

// Visits the events, the newest first, until `visit` returns false.
template <class Visit> void block_history::visit_newest_first(Visit visit) const {
  auto const kept = std::min<std::uint64_t>(recorded_, ring_.size());
  for (std::uint64_t i = 0; i < kept; ++i) {
    if (!visit(ring_[(recorded_ - i) % ring_.size()])) return;
  }
}

std::size_t block_history::newest(void const* address, block_event* into, std::size_t max_events) const noexcept {
  std::size_t found = 0;
  visit_newest_first([&](block_event const& each) {
    if (covers(each, address)) into[found++] = each;
    return found < max_events;
  });
  std::reverse(into, into + found);
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
ends ends_of(guarded_block const& block, guard_layout const& of) noexcept {
  if (block.bytes <= of.poison) return {block.bytes, 0};
  return {of.poison / 2, of.poison / 2};
}

void add(corruption& sum, corruption const& part, std::size_t at) noexcept {
  if (part.bytes == 0) return;
  if (sum.bytes == 0) sum.first = at + part.first;
  sum.bytes += part.bytes;
  sum.last = at + part.last;
}

} // namespace

std::array<byte_run, 2> guarded_block::all(guard_layout const& of) const noexcept {
  auto const [begin, end] = ends_of(*this, of);
  if (begin == bytes) return {{{user - of.guard, of.guard + bytes + tail()}, {}}};
  return {{{user - of.guard, of.guard + begin}, {user + bytes - end, end + tail()}}};
}

std::array<byte_run, 2> guarded_block::inside(guard_layout const& of) const noexcept {
  auto const [begin, end] = ends_of(*this, of);
  return {{{user, begin}, {user + bytes - end, end}}};
}

std::array<byte_run, 2> guarded_block::guards(guard_layout const& of) const noexcept {
  return {{{user - of.guard, of.guard}, {user + bytes, tail()}}};
}

void guarded_block::check(guard_layout const& of, char const* seen) noexcept {
  auto const [begin, end] = ends_of(*this, of);
  auto const* const first = seen + of.guard;
  check({seen, first, first + begin, first + begin + end}, of);
}

void guarded_block::check_in_place(guard_layout const& of) noexcept {
  auto const end = ends_of(*this, of).end;
  check({user - of.guard, user, user + bytes - end, user + bytes}, of);
}

void guarded_block::check(pieces const& seen, guard_layout const& of) noexcept {
  auto const [begin, end] = ends_of(*this, of);
  report = {};
  if (guards_filled) {
    add(report.underrun, compare(seen.front_guard, of.guard, fill_pattern::guard), 0);
    add(report.overrun, compare(seen.tail_guard, tail(), fill_pattern::guard), 0);
  }
  if (!poisoned) return;
  add(report.after_free, compare(seen.begin, begin, fill_pattern::poison), 0);
  add(report.after_free, compare(seen.end, end, fill_pattern::poison), bytes - end);
}

void guarded_blocks::add(std::unique_ptr<guarded_block> made) {
  auto const address = reinterpret_cast<std::uintptr_t>(made->user);
  blocks_.emplace(address, std::move(made));
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

void guarded_blocks::amend(statistics& seen) const noexcept {
  seen.live = live_;
  seen.peak_live = peak_live_;
  seen.allocations = allocations_;
  seen.frees = frees_;
}

} // namespace gpumem::detail
