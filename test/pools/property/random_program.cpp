// The life of a random program: its threads, its blocks, and its end.
// SPDX-License-Identifier: Apache-2.0
#include "random_source.hpp"
#include "program.hpp"
#include "region_upstream.hpp"

#include <gpumem/simulator.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <cuda.h>
#include <dlfcn.h>

import gpumem;
#include "stream_kinds.hpp"
#include "random_program.hpp"

namespace gpumem_test {

template <class Memory> int random_program<Memory>::enter(actor& self) {
  for (;;) {
    auto const which = static_cast<int>(self.random.below(self.thread == 0 ? stream_choices : stream_choices - 1));
    std::scoped_lock const held{mutex_};
    if (recycling_[which]) continue;
    ++users_[which];
    return which;
  }
}

template <class Memory> void random_program<Memory>::enter(int which) {
  if (which < 0) return;
  std::scoped_lock const held{mutex_};
  ++users_[which];
}

template <class Memory> void random_program<Memory>::leave(int which) {
  if (which < 0) return;
  std::scoped_lock const held{mutex_};
  --users_[which];
}

// Takes a block that the thread may use; its stream stays in use meanwhile.
template <class Memory> std::optional<live_block> random_program<Memory>::pick(actor& self) {
  auto const start = self.random.next();
  std::scoped_lock const held{mutex_};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto& block = blocks_[(start + i) % blocks_.size()];
    if (block.thread >= 0 && block.thread != self.thread) continue;
    auto const found = block;
    block = blocks_.back();
    blocks_.pop_back();
    return found;
  }
  return std::nullopt;
}

template <class Memory> void random_program<Memory>::put(live_block const& block) {
  std::scoped_lock const held{mutex_};
  blocks_.push_back(block);
}

template <class Memory>
std::optional<live_block> random_program<Memory>::take_own(std::vector<live_block>& from, int thread) {
  std::scoped_lock const held{mutex_};
  auto const own = std::ranges::find(from, thread, &live_block::thread);
  if (own == from.end()) return std::nullopt;
  auto const taken = *own;
  from.erase(own);
  return taken;
}

template <class Memory> void random_program<Memory>::body(int thread) {
  try {
    gpumem::device_guard const here{fixed().device}; // default streams belong to the current device
    actor self{thread, random_source{seed_ * 31 + static_cast<std::uint64_t>(thread) + 1}};
    for (int i = 0; i < how_.operations; ++i) step(self);
    // Blocks that only this thread can free.
    while (auto const block = take_own(blocks_, thread)) {
      checked_->deallocate(stream_of(block->home), block->pointer, block->bytes);
      leave(block->home);
    }
    while (auto const loan = take_own(loans_, thread)) end_loan(*loan, loan->home);
    for (auto const which : {null, per_thread}) {
      self.event.record(stream_of(which));
      self.event.synchronize();
      gpumem::extend::identify(stream_of(which), fixed().device).identity().timeline().poll();
    }
  } catch (std::exception const& e) { fail(std::string{"an exception: "} + e.what()); }
}

// Frees all blocks, closes the pool, and checks that all memory returns to the upstream.
template <class Memory> program_result random_program<Memory>::finish() {
  auto& f = fixed();
  for (auto const& block : blocks_) {
    if (block.home < 0) {
      checked_->deallocate_sync(block.pointer, block.bytes);
    } else {
      checked_->deallocate(stream_of(block.home), block.pointer, block.bytes);
    }
  }
  for (auto const& loan : loans_) end_loan(loan, loan.home);
  auto const statistics = pool_->statistics();
  auto& counts = result_.counts;
  for (auto const* const rare : {"trims that gave memory back", "streams recycled"}) counts[rare] += 0;
  counts["tier own"] = statistics.reuse_same_stream;
  counts["tier ordered"] = statistics.reuse_ordered;
  counts["tier completed"] = statistics.reuse_completed;
  counts["tier wait"] = statistics.reuse_waited;
  counts["tier wait of the host"] = statistics.reuse_after_sync;
  counts[Memory::growths] = statistics.upstream_allocations;
  counts[Memory::returns] = statistics.upstream_frees;
  counts["coalesces"] = statistics.coalesces;
  counts["coalesces refused"] = statistics.coalesces_refused;
  counts["failures"] = statistics.failures;
  counts["allocations"] = statistics.allocations;
  auto const counters = engine().read_counters();
  counts["thread cache hits"] = counters.thread_cache_hits;
  counts["quick list hits"] = counters.quick_list_hits;
  counts["blocks flushed"] = counters.flushed;
  counts["frees without room in a cache"] = counters.refused_frees;
  counts["ranges promoted"] = counters.promoted;
  auto const shards = statistics.shards + counters.joins;
  counts["shards given to threads"] = shards - 1;
  counts["shards joined again"] = counters.joins;
  counts["calls under one lock of several"] = shards > 1 ? counters.locked_calls - counters.all_locked_calls : 0;
  counts["steals"] = counters.steals;
  counts["remote frees"] = counters.remote_frees;
  counts["chunks migrated"] = counters.chunks_migrated;
  counts["page unmaps"] = counters.page_unmaps;
  counts["page moves"] = counters.page_moves;
  if (statistics.live != 0) fail("live bytes are left: " + std::to_string(statistics.live));
  if (statistics.lent != 0) fail("lent bytes are left: " + std::to_string(statistics.lent));
  if (statistics.limit && statistics.peak_reserved > statistics.limit) fail("more was reserved than the limit");
  checked_.reset();
  lender_.reset();
  pool_.reset();
  // Adopting a raw stream and dropping the result ends a promise; an event then covers the stream's last frees.
  for (auto const which : {foreign_c, foreign_d}) (void)gpumem::stream::adopt(foreign_[which]);
  if (auto const stuck = simulator::run_until_idle()) fail(std::to_string(stuck) + " operations never ran");
  for (int i = 0; i < 5000 && memory_.outstanding() > 0; ++i)
    gpumem::detail::sync::sleep_for(std::chrono::milliseconds{1});
  if (memory_.outstanding() > 0)
    fail("chunks were never returned to the upstream: " + std::to_string(memory_.outstanding()) + " bytes");
  for (auto const which : {foreign_c, foreign_d}) {
    gpumem::extend::identify(stream_of(which), f.device).identity().timeline().poll();
    stream_fixtures::destroy_stream(foreign_[which]);
  }
  for (auto const& found : simulator::take_findings()) fail(found.text);
  result_.trace = trace_;
  result_.operations = static_cast<std::uint64_t>(how_.threads) * static_cast<std::uint64_t>(how_.operations);
  return result_;
}

void prepare_programs() {
  simulator::load();
  fixed();
}

template class random_program<region_memory>;
template class random_program<page_memory>;

template <class Memory>
program_result run_over(std::uint64_t seed, program_options const& how, program_runner const& run) {
  random_program<Memory> one{seed, how};
  std::vector<std::function<void()>> bodies;
  for (int i = 0; i < how.threads; ++i) bodies.emplace_back([&one, i] { one.body(i); });
  run(seed, std::move(bodies));
  return one.finish();
}

// One program in three uses pages.
program_result run_program(std::uint64_t seed, program_options const& how, program_runner const& run) {
  prepare_programs();
  bool const pages = seed % 3 == 0;
  simulator::reset({.addresses = pages && page_memory::has_few_addresses(seed) ? page_memory::few_addresses : 0});
  simulator::seed(seed);
  return pages ? run_over<page_memory>(seed, how, run) : run_over<region_memory>(seed, how, run);
}

} // namespace gpumem_test
