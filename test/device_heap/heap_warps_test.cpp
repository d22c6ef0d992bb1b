// Warps that allocate and free blocks of a heap at the same time, under schedules: no blocks overlap, each write to a
// block is ordered after those before its free, no memory is lost, and the statistics and the metadata are right.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"
#include "emulated_warps.hpp"
#include "heap_model.hpp"

#include <gpumem/device_heap_core.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpumem_test::access;
using gpumem_test::emulated_warps;
using gpumem_test::granted_bytes;
using gpumem_test::heap_memory;
using gpumem_test::path_counts;
namespace parts = gpumem::heap_detail;
constexpr std::size_t MiB = std::size_t{1} << 20;
template <bool Checks> using core_of = parts::heap_core<gpumem_test::emulated_lanes<Checks>>;

std::uint64_t hash(std::uint64_t key) {
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ull;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebull;
  return key ^ (key >> 31);
}

// Counts which paths the lanes take, by the words that they change.
class path_watch {
public:
  path_watch(heap_memory const& heap, path_counts& counts) : heap_{heap}, counts_{counts} {}

  void operator()(access what, void const* address, std::uint64_t old, std::uint64_t now) {
    auto const offset =
        static_cast<std::size_t>(static_cast<unsigned char const*>(address) - heap_.at<unsigned char>(0));
    auto const& layout = heap_.layout();
    if (offset < parts::layout::slots) return;
    if (offset < layout.cache_sizes()) {
      slot(what, (offset - parts::layout::slots) / 8, old, now);
    } else if (offset < layout.caches()) {
      if (what == access::add && now + 1 == old && static_cast<std::int32_t>(old) > most_entries)
        count("cache overflow");
      if (static_cast<std::int32_t>(now) < 0) count("cache size below 0");
    } else if (offset < layout.states()) {
      if (what == access::exchange && now == 0)
        count(old != 0 && old != parts::cache_gap ? "cache hit" : "cache place without a block");
      if (what == access::exchange && now != 0)
        count(old == parts::cache_gap ? "cache block above the size"
              : old != 0              ? "cache block displaced"
                                      : "cache block put");
      if (what == access::load) count("caches emptied");
    } else if (offset < layout.sets()) {
      state(what, static_cast<std::uint32_t>(old), static_cast<std::uint32_t>(now));
    } else if (offset < layout.bits()) {
      set(what, (offset - layout.sets()) / 8, old, now);
    } else if (what == access::set_bits && std::popcount(now & ~old) > 8) {
      count("reservation given back");
    } else if (what == access::keep_bits && old == now) {
      count("bits lost to another lane");
    }
  }

private:
  static constexpr int most_entries = 4; // of the smallest cache; a larger one overflows with more
  void count(char const* path) { ++counts_[path]; }
  void slot(access what, std::size_t index, std::uint64_t old, std::uint64_t now) {
    if (index % parts::slot_stride >= parts::class_count) return;
    if (what == access::exchange)
      count(parts::reserved_of(now) == 0 ? "slot fill failed"
            : parts::is_marked(now)      ? "slot fill of marked blocks"
                                         : "slot fill of a row");
    if (what != access::add) return;
    auto const taken = parts::taken_of(old), reserved = parts::reserved_of(old);
    bool const elsewhere = index / parts::slot_stride != emulated_warps::current().processor();
    count(taken > reserved ? "slot waited for" : elsewhere ? "slot of another multiprocessor" : "slot taken from");
  }
  void state(access what, std::uint32_t old, std::uint32_t now) {
    auto const kind = parts::kind_of(old);
    if (what == access::store) count(parts::kind_of(now) == parts::large ? "large block" : "slab of a class");
    if (what != access::compare) return;
    if (old == now)
      count("state lost to another lane");
    else if (kind == parts::large)
      count("large block freed");
    else if (now == 0)
      count(parts::count_of(old) == 0 ? "slab freed whole" : "slab freed by its count");
    else
      count("freed blocks reserved");
  }
  void set(access what, std::size_t word, std::uint64_t old, std::uint64_t now) {
    auto const& layout = heap_.layout();
    word %= layout.set_words;
    auto const level = word < layout.words1 ? 1 : word < layout.words1 + layout.words2 ? 2 : 3;
    if (what == access::keep_bits && old != now)
      count(level == 1 ? "slab leaves a set" : level == 2 ? "bit of level 2 cleared" : "bit of level 3 cleared");
    if (what == access::keep_bits && old == now && level == 1) count("slab lost to another lane");
    if (what == access::set_bits && old != now && level == 3) count("bit of level 3 set");
  }

  heap_memory const& heap_;
  path_counts& counts_;
};

// The choices of one seed.
struct plan {
  explicit plan(std::uint64_t seed)
      : random{seed}, lanes{random() % 2 != 0 ? 4u : 8u},
        warps{lanes == 8 ? 2u + static_cast<unsigned>(random() % 3) : 2 + static_cast<unsigned>(random() % 5)},
        processors{1 + static_cast<unsigned>(random() % 4)}, bytes{2 * MiB << random() % 2},
        rounds{6 + static_cast<unsigned>(random() % 10)}, quantum{1u << random() % 5},
        stale{random() % 2 != 0 ? 2u : 0u}, sizes{static_cast<unsigned>(random() % 6)}, grows{random() % 3 == 0} {
    first_log = 4 + static_cast<unsigned>(random() % 13);
  }
  std::mt19937_64 random;
  unsigned lanes, warps, processors;
  std::size_t bytes;
  unsigned rounds, quantum, stale, sizes, first_log;
  bool grows;
};

template <bool Checks> class program {
public:
  program(std::uint64_t seed, path_counts& paths)
      : seed_{seed}, plan_{seed}, heap_{reserve, plan_.bytes, plan_.processors * std::size_t{8} * MiB},
        watch_{heap_, paths}, warps_{{.seed = seed * 7919,
                                      .warps = plan_.warps,
                                      .lanes = plan_.lanes,
                                      .processors = plan_.processors + 1,
                                      .quantum = plan_.quantum,
                                      .stale = plan_.stale},
                                     [this](access what, void const* address, std::uint64_t old, std::uint64_t now) {
                                       watch_(what, address, old, now);
                                     }},
        accessed_(reserve / 16) {}

  void run() {
    for (int part = 0; part != 2; ++part) {
      part_ = part;
      plenty_ = plan_.sizes == 1 && plan_.bytes > 2 * MiB; // even if each slot has a slab
      warps_.run([this](unsigned number) { lane(number); }, [this] { host(); });
      plenty_ = false;
      check_idle("after the kernels");
      // Each lane frees a part of the blocks.
      warps_.run([this](unsigned) {
        while (!live_.empty()) free_any();
      });
      check_idle("after the frees");
      auto const all = heap_.statistics();
      expect(all.live == 0 && all.live_bytes == 0, "blocks stay live after all frees");
    }
    for (auto const log : {16u, seed_ % 100 == 0 ? 4 : std::max(plan_.first_log, 11u)}) {
      fill(log);
      check_idle("when the heap is full");
      warps_.run([this](unsigned) {
        while (!live_.empty()) free_any();
      });
      check_idle("after the frees of the full heap");
    }
    heap_.reset();
    failed_ = 0;
    check_idle("after a reset");
    expect(heap_.statistics().free == heap_.slabs() * parts::slab_bytes, "a reset leaves slabs");
  }

private:
  static constexpr std::size_t reserve = 32 * MiB;

  struct block {
    std::size_t bytes = 0;
    emulated_warps::clock time{}; // after its allocation
  };

  void expect(bool right, std::string const& otherwise) const {
    if (!right) throw std::runtime_error{otherwise};
  }
  void check_idle(char const* when) {
    heap_memory::block_map live;
    std::size_t bytes = 0, large = 0;
    std::array<std::uint64_t, parts::class_count> counts{};
    for (auto const& [offset, each] : live_) {
      live[offset] = each.bytes;
      bytes += each.bytes;
      if (each.bytes > parts::slab_bytes)
        ++large;
      else
        ++counts[static_cast<unsigned>(std::countr_zero(each.bytes)) - 4];
    }
    if (auto const wrong = heap_.error_of(live); !wrong.empty()) throw std::runtime_error{wrong + " " + when};
    auto const seen = heap_.statistics();
    expect(seen.live == live.size() && seen.live_bytes == bytes && seen.large == large,
           std::string{"the statistics count other blocks "} + when);
    for (unsigned i = 0; i != parts::class_count; ++i)
      expect(seen.classes[i].live == counts[i], std::string{"the statistics count other blocks of a class "} + when);
    expect(seen.failed == failed_, std::string{"the statistics count other failures "} + when);
    expect(seen.bad_frees == 0, std::string{"a free was bad "} + when);
    expect(seen.bytes == heap_.slabs() * parts::slab_bytes, "the statistics have another size");
  }

  std::size_t size_of(std::uint64_t key) const {
    switch (plan_.sizes) {
    case 0: return std::size_t{1} << plan_.first_log;                   // one class
    case 1: return 16 + hash(key) % 48;                                 // small ones
    case 2: return std::size_t{2048} << hash(key) % 2;                  // slabs that one warp can free
    case 3: return std::size_t{8192} << hash(key) % 4;                  // large classes
    case 4: return (std::size_t{16} << hash(key) % 13) - hash(key) % 8; // all classes
    default:
      return hash(key) % 4 == 0 ? 1 + (hash(key) >> 8) % (MiB + MiB / 2)
                                : std::size_t{1024} << hash(key) % 7; // large blocks too
    }
  }

  void lane(unsigned number) {
    auto const warp = number / plan_.lanes;
    for (unsigned round = 0; round != plan_.rounds; ++round) {
      auto const key = hash(seed_ * 1'000'003 + static_cast<unsigned>(part_) * 500'009u + warp * 1009 + round);
      auto const own = hash(key + number + 1);
      if (own % 8 == 0) continue; // not in this round
      auto const burst = key >> 40 & 3 ? 1 + (key >> 32) % 4 : 1 + (key >> 32) % 32;
      for (unsigned i = 0; i != burst; ++i)
        if (key % 16 < 9)
          allocate(size_of((key >> 8 & 1) ? key : own + i));
        else
          free_any();
    }
  }

  // Makes slabs free while kernels run, as a growth does, in several steps.
  void host() {
    if (!plan_.grows || part_ != 0) return;
    for (auto i = warps_.random()() % 4000; i != 0; --i) warps_.pause();
    auto const old = heap_.slabs(), now = old + 32;
    for (auto const& each : parts::fills_of_growth(heap_.layout(), old, now)) {
      auto const word = each.value == 0 ? 0 : ~std::uint32_t{0};
      for (std::size_t i = 0; i != each.bytes; i += 4) {
        auto const offset = each.offset + i;
        if (offset < heap_.layout().sets() || offset >= heap_.layout().bits())
          *heap_.at<std::uint32_t>(offset) = word; // of slabs that no lane knows
        else
          gpumem_test::emulated_lanes<Checks>::template fetch_or<parts::order::release>(
              heap_.at<std::uint64_t>(offset / 8 * 8), std::uint64_t{word} << offset % 8 * 8);
      }
    }
    heap_.set_slabs(now);
  }

  gpumem::heap_view view() {
    // Some kernels have an older view.
    return warps_.warp() % 2 == 0 ? heap_.view() : heap_.view_of(2 * MiB);
  }

  bool allocate(std::size_t bytes) {
    auto const seen = view();
    warps_.enter(0);
    auto* const result = core_of<Checks>{seen}.allocate(bytes);
    warps_.leave();
    if (result == nullptr) {
      expect(!plenty_, "null while there is memory");
      ++failed_;
      return false;
    }
    auto const offset = heap_.offset_of(result), granted = granted_bytes(bytes);
    expect(offset + granted <= heap_.layout().slabs * parts::slab_bytes, "a block outside of the heap");
    expect(offset % std::min(granted, parts::slab_bytes) == 0, "a block is not aligned");
    auto const after = live_.lower_bound(offset);
    expect(after == live_.end() || after->first >= offset + granted, "two blocks overlap");
    expect(after == live_.begin() || std::prev(after)->first + std::prev(after)->second.bytes <= offset,
           "two blocks overlap");
    touch(offset, granted);
    warps_.tick();
    live_[offset] = {granted, warps_.time()};
    return true;
  }
  void free_any() {
    if (live_.empty()) return;
    auto found = live_.lower_bound(warps_.random()() % (heap_.slabs() * parts::slab_bytes));
    if (found == live_.end()) found = live_.begin();
    auto const [offset, each] = *found;
    live_.erase(found);
    warps_.order_after(each.time); // as if the thread that has the block had given it
    touch(offset, each.bytes);
    warps_.tick();
    auto const seen = view();
    warps_.enter(1);
    core_of<Checks>{seen}.deallocate(seen.data() + offset);
    warps_.leave();
  }
  // The lane writes to the block, which must be ordered after what other lanes did with this memory before.
  void touch(std::size_t offset, std::size_t bytes) {
    auto const& time = warps_.time();
    for (auto i = offset / 16; i != (offset + bytes) / 16; ++i) {
      auto& last = accessed_[i];
      if (time[last.first] < last.second) throw std::runtime_error{"a write to a block is not ordered after its free"};
      last = {warps_.number(), time[warps_.number()]};
    }
  }
  // One lane allocates until it gets nothing: that is all of the heap.
  void fill(unsigned log) {
    auto const before = live_.size();
    warps_.run([&](unsigned number) {
      if (number == 0)
        while (allocate(std::size_t{1} << log)) {}
    });
    auto const blocks = heap_.slabs() * (parts::slab_bytes >> log);
    expect(live_.size() - before == blocks,
           std::to_string(live_.size() - before) + " blocks of " + std::to_string(blocks) +
               " are found when the heap is filled with blocks of " + std::to_string(1u << log));
  }
  std::uint64_t seed_;
  plan plan_;
  heap_memory heap_;
  path_watch watch_;
  emulated_warps warps_;
  std::map<std::size_t, block> live_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> accessed_; // the lane and its time, for each 16 bytes
  std::uint64_t failed_ = 0;
  int part_ = 0;
  bool plenty_ = false;
};

TEST(heap_warps, blocks_are_right_under_schedules) {
  path_counts paths;
#if __has_feature(thread_sanitizer)
  test::schedule_seeds const seeds{30}; // each takes many times as long
#else
  test::schedule_seeds const seeds{150, 3};
#endif
  seeds.each([&](std::uint64_t seed) {
    std::string wrong;
    try {
      if (seed % 4 != 0)
        program<false>{seed, paths}.run();
      else
        program<true>{seed, paths}.run();
    } catch (std::exception const& e) { wrong = e.what(); }
    ASSERT_EQ(wrong, "") << "GPUMEM_SEED=" << seed;
  });
  for (auto const& [path, times] : std::map(paths.begin(), paths.end()))
    std::printf("%9llu %s\n", static_cast<unsigned long long>(times), path.c_str());
  if (seeds.alone() || seeds.count() < 75) return;
  EXPECT_EQ(paths.size(), 28u) << "a path was never taken";
}

} // namespace
