// The life of a random program: its threads, its blocks, and its end.
// SPDX-License-Identifier: Apache-2.0
#include "chance.hpp"
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
#include "lanes.hpp"
#include "random_program.hpp"

namespace gpumem_test {

template <class Memory> int random_program<Memory>::enter(actor& who) {
  for (;;) {
    auto const which = static_cast<int>(who.random.below(who.thread == 0 ? lanes : lanes - 1));
    std::scoped_lock const held{guard_};
    if (recycling_[which]) continue;
    ++users_[which];
    return which;
  }
}

template <class Memory> void random_program<Memory>::enter(int which) {
  if (which < 0) return;
  std::scoped_lock const held{guard_};
  ++users_[which];
}

template <class Memory> void random_program<Memory>::leave(int which) {
  if (which < 0) return;
  std::scoped_lock const held{guard_};
  --users_[which];
}

// Takes a block that the thread may use; the block keeps its lane in use.
template <class Memory> std::optional<live_block> random_program<Memory>::pick(actor& who) {
  auto const start = who.random.next();
  std::scoped_lock const held{guard_};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto& block = blocks_[(start + i) % blocks_.size()];
    if (block.thread >= 0 && block.thread != who.thread) continue;
    auto const found = block;
    block = blocks_.back();
    blocks_.pop_back();
    return found;
  }
  return std::nullopt;
}

template <class Memory> void random_program<Memory>::put(live_block const& block) {
  std::scoped_lock const held{guard_};
  blocks_.push_back(block);
}

template <class Memory> void random_program<Memory>::body(int thread) {
  try {
    gpumem::current_device const here{fixed().device}; // the work of default streams is the current device's
    actor who{thread, chance{seed_ * 31 + static_cast<std::uint64_t>(thread) + 1}};
    for (int i = 0; i < how_.operations; ++i) step(who);
    // What only this thread can free.
    for (;;) {
      std::unique_lock held{guard_};
      auto const own = std::ranges::find(blocks_, thread, &live_block::thread);
      if (own == blocks_.end()) break;
      auto const block = *own;
      blocks_.erase(own);
      held.unlock();
      checked_->deallocate(stream_of(block.home), block.pointer, block.bytes);
      leave(block.home);
    }
    for (auto const which : {null, per_thread}) {
      who.event.record(stream_of(which));
      who.event.synchronize();
      gpumem::identify(stream_of(which), fixed().device).order().poll();
    }
  } catch (std::exception const& e) { fail(std::string{"an exception: "} + e.what()); }
}

// Frees what is left, closes the pool, and sees that everything goes back upstream.
template <class Memory> program_result random_program<Memory>::finish() {
  auto& f = fixed();
  for (auto const& block : blocks_) {
    if (block.home < 0) {
      checked_->deallocate_sync(block.pointer, block.bytes);
    } else {
      checked_->deallocate(stream_of(block.home), block.pointer, block.bytes);
    }
  }
  auto const figures = pool_->figures();
  auto& counts = result_.counts;
  for (auto const* const rare : {"trims that gave memory back", "streams recycled"}) counts[rare] += 0;
  counts["rung own"] = figures.reuse_own;
  counts["rung ordered"] = figures.reuse_ordered;
  counts["rung completed"] = figures.reuse_completed;
  counts["rung wait"] = figures.reuse_waited;
  counts["rung drain"] = figures.reuse_drained;
  counts[Memory::growths] = figures.growths;
  counts[Memory::returns] = figures.releases;
  counts["joins"] = figures.joins;
  counts["joins refused"] = figures.joins_refused;
  counts["failures"] = figures.failures;
  counts["allocations"] = figures.allocations;
  auto const paths = engine().read_paths();
  counts["magazine hits"] = paths.near_hits;
  counts["span hits"] = paths.spare_hits;
  counts["blocks swept"] = paths.swept;
  counts["credit refused"] = paths.refused;
  counts["ranges given to all"] = paths.completed;
  counts["shards beside the first"] = paths.shards - 1;
  counts["calls under one lock of several"] = paths.shards > 1 ? paths.locked_calls - paths.all_locked : 0;
  counts["grants out of others' shards"] = paths.borrowed;
  counts["frees posted"] = paths.posted;
  counts["chunks adopted"] = paths.adopted;
  counts["free pages that gave way"] = paths.made_way;
  counts["free pages that moved"] = paths.moved;
  if (figures.live != 0) fail("live bytes are left: " + std::to_string(figures.live));
  if (figures.limit && figures.peak_reserved > figures.limit) fail("more was reserved than the limit");
  checked_.reset();
  pool_.reset();
  // The end of a promise is where the last frees of a raw stream are covered by an event.
  for (auto const which : {foreign_c, foreign_d}) gpumem::stream::adopt(foreign_[which]);
  if (auto const stuck = simulator::run_until_idle()) fail(std::to_string(stuck) + " operations never ran");
  for (int i = 0; i < 5000 && memory_.outstanding() > 0; ++i) gpumem::sync::sleep_for(std::chrono::milliseconds{1});
  if (memory_.outstanding() > 0) fail("chunks never went back: " + std::to_string(memory_.outstanding()) + " bytes");
  for (auto const which : {foreign_c, foreign_d}) {
    gpumem::identify(stream_of(which), f.device).order().poll();
    lane_fixtures::destroy_stream(foreign_[which]);
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

// One program in three is over pages.
program_result run_program(std::uint64_t seed, program_options const& how, program_runner const& run) {
  prepare_programs();
  simulator::seed(seed);
  return seed % 3 == 0 ? run_over<page_memory>(seed, how, run) : run_over<region_memory>(seed, how, run);
}

} // namespace gpumem_test
