// Warps that run on the host: each lane is a fiber, and a seed decides which lane runs next at each atomic operation.
// Loads may return old values where nothing orders the newer ones before them, and clocks say what is ordered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap_sets.hpp>

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#if __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
#endif

namespace gpumem_test {

using gpumem::heap_detail::order;

// How often a program took each path.
using path_counts = std::unordered_map<std::string, std::uint64_t>;

enum class access { load, store, add, set_bits, keep_bits, exchange, compare };

class emulated_warps {
public:
  static constexpr unsigned most_lanes = 33; // of all warps, and the host's
  using u32 = std::uint32_t;
  using u64 = std::uint64_t;
  using clock = std::array<u32, most_lanes>;

  struct settings {
    std::uint64_t seed = 1;
    unsigned warps = 4, lanes = 4, processors = 2;
    unsigned quantum = 2;      // one in this number of operations lets another lane run
    unsigned stale = 0;        // one in this number of loads may return an old value; 0: none
    unsigned diverging = 4;    // one in this number of calls begins without some lanes; 0: none
    bool alone = true;         // false: other threads use the memory at the same time, so that no order is tracked
    unsigned first_warp = 0;   // number of the first warp, for threads that run one warp each
    std::size_t stack = 65536; // bytes
  };
  // Called after each operation: its kind, address, old and new value.
  using observer = std::function<void(access, void const*, u64, u64)>;

  emulated_warps(settings const& with, observer observe)
      : with_{with}, observe_{std::move(observe)}, random_{with.seed} {}
  emulated_warps(emulated_warps const&) = delete;
  emulated_warps& operator=(emulated_warps const&) = delete;

  // Runs one body on each lane of each warp, and `host` beside them. Throws what a body throws.
  void run(std::function<void(unsigned)> const& body, std::function<void()> const& host = {}) {
    auto const count = with_.warps * with_.lanes;
    if (count + 1 > most_lanes) throw std::logic_error{"too many lanes"};
    lanes_.clear();
    for (unsigned i = 0; i != count + (host ? 1 : 0); ++i) {
      auto& each = *lanes_.emplace_back(std::make_unique<lane_state>());
      each.number = i;
      each.warp = i / with_.lanes;
      each.body = i == count ? host : [body, i] { body(i); };
      each.time = times_[i];
      make_fiber(each);
    }
    for (auto const& each : lanes_) // all of them are ordered after what was before
      for (auto const& other : lanes_) join(each->time, times_[other->number]);
    for (auto const& each : lanes_) ++each->time[each->number];
    auto* const outer = current_;
    current_ = this;
    running_ = nullptr;
    switch_to(next());
    current_ = outer;
    for (auto const& each : lanes_) {
      for (auto const& other : lanes_) join(times_[each->number], other->time);
      drop_fiber(*each);
    }
    lanes_.clear();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  static emulated_warps& current() { return *current_; }
  std::mt19937_64& random() { return random_; }
  u32 one_in(u32 count) { return count != 0 && random_() % count == 0; }

  // The site of the next call, so that lanes in different calls do not count as active together.
  void enter(unsigned site) { running_->site = site; }
  void leave() {
    auto& group = *running_->group;
    if (group.arrived != 0) fail("a lane leaves while others wait for it");
    group.departed |= 1u << lane();
    running_->group = nullptr;
  }
  clock const& time() const { return running_->time; }
  u32 number() const { return running_->number; }
  void order_after(clock const& other) { join(running_->time, other); }
  void tick() { ++running_->time[running_->number]; }

  u32 lane() const { return running_->number % with_.lanes; }
  u32 warp() const { return with_.first_warp + running_->warp; }
  u32 processor() const { return warp() % with_.processors; }
  u32 noise() { return static_cast<u32>(random_()); }

  // Returns the lanes of the warp that run together until the call ends.
  u32 active() {
    running_->gathers = true;
    let_others_run();
    return running_->group->mask;
  }
  // Waits for the lanes of the group, which give a value each, and returns the values.
  std::array<u64, 32> const& gather(u32 active, unsigned kind, u64 value, bool orders) {
    auto& group = *running_->group;
    if (active != group.mask || group.departed != 0) fail("lanes diverge: another mask");
    if (group.arrived != 0 && group.kind != kind) fail("lanes diverge: another operation");
    group.kind = kind;
    group.values[lane()] = value;
    group.arrived |= 1u << lane();
    if (group.arrived == group.mask) {
      group.results = group.values;
      group.arrived = 0;
      ++group.phase;
      if (orders && with_.alone) order_lanes(group.mask);
      if (one_in(with_.quantum)) let_others_run();
    } else {
      running_->waits_for = group.phase + 1;
      let_others_run();
    }
    return group.results;
  }
  // Another lane may run; most of them do before this one if it pauses.
  void step() {
    if (one_in(with_.quantum)) pause();
  }
  void pause() {
    if (with_.alone && one_in(128)) running_->sleeps_until = steps_ + random_() % 4096;
    let_others_run();
  }
  [[noreturn]] void fail(char const* why) { throw std::runtime_error{why}; }

  template <order Order, class T> T load(T* address) {
    step();
    if (!with_.alone) return std::atomic_ref{*address}.load(std_order(Order, false));
    auto& place = place_of(address);
    auto version = place.versions;
    if (one_in(with_.stale)) {
      auto const& time = running_->time;
      auto const kept = std::min<u64>(place.versions, place.history.size());
      // A version may be read if nothing orders the next one before the reader, which has not read a newer one.
      while (version > place.versions - kept + 1 && version > place.read[running_->number] && one_in(2) != 0) {
        auto const& newer = place.history[version % place.history.size()];
        if (time[newer.lane] >= newer.time) break;
        --version;
      }
    }
    place.read[running_->number] = version;
    if (Order == order::acquire) join(running_->time, place.released);
    auto const result =
        version == place.versions ? *address : static_cast<T>(place.history[version % place.history.size()].value);
    tell(access::load, address, static_cast<u64>(result), static_cast<u64>(result));
    return result;
  }
  template <order Order, class T> void store(T* address, T value) {
    step();
    if (!with_.alone) return std::atomic_ref{*address}.store(value, std_order(Order, true));
    auto& place = place_of(address);
    place.released = clock{};
    auto const old = *address;
    write(place, address, value, Order == order::release);
    tell(access::store, address, static_cast<u64>(old), static_cast<u64>(value));
  }
  template <order Order, class T, class Change> T change(access what, T* address, Change next) {
    step();
    if (!with_.alone) {
      std::atomic_ref const place{*address};
      auto old = place.load(std::memory_order_relaxed);
      while (!place.compare_exchange_weak(old, next(old), rmw_order(Order), std::memory_order_relaxed)) {}
      return old;
    }
    auto& place = place_of(address);
    auto const old = *address;
    if (Order == order::acquire || Order == order::acq_rel) join(running_->time, place.released);
    write(place, address, next(old), Order == order::release || Order == order::acq_rel);
    tell(what, address, static_cast<u64>(old), static_cast<u64>(*address));
    return old;
  }
  template <order Order, class T> bool compare_exchange(T* address, T& expected, T value) {
    step();
    if (!with_.alone)
      return std::atomic_ref{*address}.compare_exchange_strong(expected, value, rmw_order(Order),
                                                               std::memory_order_relaxed);
    auto& place = place_of(address);
    auto const old = *address;
    place.read[running_->number] = place.versions;
    tell(access::compare, address, static_cast<u64>(old), static_cast<u64>(old == expected ? value : old));
    if (old != expected) {
      expected = old;
      return false;
    }
    if (Order == order::acquire || Order == order::acq_rel) join(running_->time, place.released);
    write(place, address, value, Order == order::release || Order == order::acq_rel);
    return true;
  }

private:
  struct group_state {
    u32 mask = 0, arrived = 0, departed = 0;
    unsigned kind = 0;
    u64 phase = 0;
    std::array<u64, 32> values{}, results{};
  };
  struct lane_state {
    unsigned number = 0, warp = 0, site = 0;
    bool gathers = false, ended = false;
    u64 waits_for = 0, sleeps_until = 0; // a phase of the group; a step
    std::shared_ptr<group_state> group;
    std::function<void()> body;
    clock time{};
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    void* fiber = nullptr;
  };
  // A word of the memory: its newest values, which lane wrote them when, and what a read of the newest orders.
  struct version {
    u64 value = 0;
    u32 lane = 0, time = 0;
  };
  struct place_state {
    std::array<version, 4> history{};
    u64 versions = 0;
    std::array<u64, most_lanes> read{};
    clock released{};
  };

  static void join(clock& mine, clock const& other) {
    for (unsigned i = 0; i != most_lanes; ++i) mine[i] = std::max(mine[i], other[i]);
  }
  static constexpr std::memory_order std_order(order value, bool stores) {
    if (value == order::relaxed) return std::memory_order_relaxed;
    return stores ? std::memory_order_release : std::memory_order_acquire;
  }
  static constexpr std::memory_order rmw_order(order value) {
    return value == order::relaxed   ? std::memory_order_relaxed
           : value == order::acquire ? std::memory_order_acquire
           : value == order::release ? std::memory_order_release
                                     : std::memory_order_acq_rel;
  }

  template <class T> place_state& place_of(T* address) {
    auto const [found, added] = places_.try_emplace(address);
    if (added) found->second.history[0].value = static_cast<u64>(*address);
    return found->second;
  }
  template <class T> void write(place_state& place, T* address, T value, bool releases) {
    auto& time = running_->time;
    auto const mine = running_->number;
    *address = value;
    place.history[++place.versions % place.history.size()] = {static_cast<u64>(value), mine, time[mine]};
    place.read[mine] = place.versions;
    if (releases) join(place.released, time);
    ++time[mine];
  }
  void tell(access what, void const* address, u64 old, u64 value) {
    if (observe_) observe_(what, address, old, value);
  }
  void order_lanes(u32 mask) {
    clock all{};
    auto const first = running_->number / with_.lanes * with_.lanes;
    for (unsigned i = 0; i != with_.lanes; ++i)
      if (mask >> i & 1) join(all, lanes_[first + i]->time);
    for (unsigned i = 0; i != with_.lanes; ++i)
      if (mask >> i & 1) {
        join(lanes_[first + i]->time, all);
        ++lanes_[first + i]->time[first + i];
      }
  }

  static bool waits(lane_state const& lane) { return lane.waits_for != 0 && lane.group->phase < lane.waits_for; }
  // Returns the lane that runs next: null if all have ended.
  lane_state* next() {
    ++steps_;
    auto const count = lanes_.size();
    for (unsigned round = 0;; ++round) {
      // The second round wakes lanes that sleep, and the third lets lanes begin a call without the others of their
      // warp.
      auto const begin = random_();
      bool all_ended = true;
      for (std::size_t i = 0; i != count; ++i) {
        auto& each = *lanes_[(begin + i) % count];
        if (each.ended) continue;
        all_ended = false;
        if (waits(each) || (round == 0 && each.sleeps_until > steps_)) continue;
        if (each.gathers && round < 2 && !one_in(16 * with_.diverging) && !has_gathered(each)) continue;
        each.sleeps_until = each.waits_for = 0;
        if (each.gathers) begin_call(each);
        return &each;
      }
      if (all_ended) return nullptr;
      if (round > 2) {
        std::fputs("all lanes wait\n", stderr);
        std::abort();
      }
    }
  }
  bool has_gathered(lane_state const& lane) const {
    return std::ranges::none_of(lanes_, [&lane](auto const& other) {
      return other->warp == lane.warp && !other->ended && !other->gathers && !waits(*other);
    });
  }
  void begin_call(lane_state& lane) {
    auto const group = std::make_shared<group_state>();
    bool const all = !one_in(with_.diverging);
    for (auto const& other : lanes_) {
      bool const together = other->gathers && other->warp == lane.warp && other->site == lane.site;
      if (other.get() != &lane && (!together || (!all && one_in(2)))) continue;
      group->mask |= 1u << other->number % with_.lanes;
      other->group = group;
      other->gathers = false;
    }
  }

  static void begin_fiber() {
    auto& warps = *current_;
    auto& lane = *warps.running_;
    try {
      lane.body();
    } catch (...) {
      if (!warps.error_) warps.error_ = std::current_exception();
    }
    lane.ended = true;
    if (warps.error_)
      for (auto const& each : warps.lanes_) each->ended = true; // their stacks keep what they have
    warps.switch_to(warps.next());
  }
  void make_fiber(lane_state& lane) const {
    lane.stack.reset(new char[with_.stack]);
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.get();
    lane.context.uc_stack.ss_size = with_.stack;
    lane.context.uc_link = nullptr;
    makecontext(&lane.context, begin_fiber, 0);
#if __has_feature(thread_sanitizer)
    lane.fiber = __tsan_create_fiber(0);
#endif
  }
  static void drop_fiber([[maybe_unused]] lane_state& lane) {
#if __has_feature(thread_sanitizer)
    __tsan_destroy_fiber(lane.fiber);
#endif
  }
  void let_others_run() {
    auto* const chosen = next();
    if (chosen != running_) switch_to(chosen);
  }
  // Null: goes back to `run`.
  void switch_to(lane_state* lane) {
    auto* const from = running_ ? &running_->context : &outside_;
    auto* const to = lane ? &lane->context : &outside_;
#if __has_feature(thread_sanitizer)
    if (!running_) outside_fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(lane ? lane->fiber : outside_fiber_, 0); // the lanes share this object
#endif
    running_ = lane;
    swapcontext(from, to);
  }

  settings with_;
  observer observe_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<lane_state>> lanes_;
  std::array<clock, most_lanes> times_{};
  std::unordered_map<void*, place_state> places_;
  lane_state* running_ = nullptr;
  ucontext_t outside_{};
  [[maybe_unused]] void* outside_fiber_ = nullptr;
  std::exception_ptr error_;
  u64 steps_ = 0;
  static inline thread_local emulated_warps* current_ = nullptr;
};

// The lanes of the emulated warp that runs.
template <bool Checks> class emulated_lanes {
public:
  using u32 = std::uint32_t;
  using u64 = std::uint64_t;
  static constexpr bool checks_frees = Checks;
  static u32 active() { return warps().active(); }
  static u32 lane() { return warps().lane(); }
  static u32 processor() { return warps().processor(); }
  static u32 noise() { return warps().noise(); }
  static u32 match(u32 active, u32 key) {
    auto const& keys = warps().gather(active, 1, key, false);
    u32 same = 0;
    for (u32 i = 0; i != 32; ++i)
      if (active >> i & 1 && keys[i] == key) same |= 1u << i;
    return same;
  }
  static u32 ballot(u32 active, bool value) {
    auto const& values = warps().gather(active, 2, value, false);
    u32 set = 0;
    for (u32 i = 0; i != 32; ++i)
      if (active >> i & 1 && values[i] != 0) set |= 1u << i;
    return set;
  }
  template <class T> static T shuffle(u32 active, T value, u32 source) {
    auto const& values = warps().gather(active, 3, static_cast<u64>(value), false);
    if (source > 31 || !(active >> source & 1)) warps().fail("a lane reads a lane that is not active");
    return static_cast<T>(values[source]);
  }
  static u32 reduce_or(u32 active, u32 group, u32 value) {
    auto const& values = warps().gather(active, 4, value, true);
    u32 result = 0;
    for (u32 i = 0; i != 32; ++i)
      if (group >> i & 1) result |= static_cast<u32>(values[i]);
    return result;
  }
  static void sync(u32 active) { warps().gather(active, 5, 0, true); }
  static void pause() { warps().pause(); }
  static u32 count(u32 word) { return static_cast<u32>(std::popcount(word)); }
  static u32 count(u64 word) { return static_cast<u32>(std::popcount(word)); }
  static u32 first(u32 word) { return static_cast<u32>(std::countr_zero(word)); }
  static u32 log2_ceiling(std::size_t value) { return static_cast<u32>(std::bit_width(value - 1)); }

  template <order Order, class T> static T load(T* address) { return warps().template load<Order>(address); }
  template <class T> static T peek(T* address) { return load<order::relaxed>(address); }
  template <order Order, class T> static void store(T* address, T value) {
    warps().template store<Order>(address, value);
  }
  template <order Order, class T> static T fetch_add(T* address, T value) {
    return warps().template change<Order>(access::add, address, [value](T old) { return static_cast<T>(old + value); });
  }
  template <order Order, class T> static T fetch_or(T* address, T value) {
    return warps().template change<Order>(access::set_bits, address, [value](T old) { return old | value; });
  }
  template <order Order, class T> static T fetch_and(T* address, T value) {
    return warps().template change<Order>(access::keep_bits, address, [value](T old) { return old & value; });
  }
  template <order Order, class T> static T exchange(T* address, T value) {
    return warps().template change<Order>(access::exchange, address, [value](T) { return value; });
  }
  template <order Order, class T> static bool compare_exchange(T* address, T& expected, T value) {
    return warps().template compare_exchange<Order>(address, expected, value);
  }
  template <class T> static void fetch_max(T* address, T value) {
    warps().template change<order::relaxed>(access::add, address, [value](T old) { return old < value ? value : old; });
  }
  static void clear(u32* words, u32 count) {
    for (u32 i = 0; i != count; ++i) store<order::relaxed>(words + i, 0u);
  }
  static void bad_free(void*) {}

private:
  static emulated_warps& warps() { return emulated_warps::current(); }
};

} // namespace gpumem_test
