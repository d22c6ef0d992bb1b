// Random programs over a pool: streams of every kind, uses, orders, frees elsewhere, trims, limits, failures.
// SPDX-License-Identifier: Apache-2.0
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

namespace gpumem_test {
namespace {

namespace simulator = gpumem::simulator;
using pool = gpumem::pool_resource<simulator::checked<region_upstream>>;
constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t region_bytes = 256 * MiB;

template <class Function> Function* driver_function(char const* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

// SplitMix64.
class chance {
public:
  explicit chance(std::uint64_t seed) : state_{seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du} {}
  std::uint64_t next() {
    auto z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T, std::size_t N> T of(T const (&values)[N]) { return values[below(N)]; }

private:
  std::uint64_t state_;
};

// The streams of a program. Null and per-thread mean another stream to each thread; `spin` is one thread's own, on
// which it lets the device wait for what it enqueues only later.
enum lane : int { own_a, own_b, adopted, foreign_c, foreign_d, legacy, null, per_thread, spin, lanes };

// What lives as long as the process.
struct fixtures {
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device}, spin{device};
  CUstream adopted_handle = make_stream(CU_STREAM_NON_BLOCKING);
  gpumem::stream adopted = gpumem::stream::adopt(adopted_handle);
  std::uintptr_t region = allocate(region_bytes);
  std::uintptr_t flag = allocate(256);
  std::atomic<std::uint32_t> flag_value{0};

  static CUstream make_stream(unsigned flags) {
    static auto* const create = driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
    CUstream made = nullptr;
    gpumem::check(create(&made, flags), "cuStreamCreate");
    return made;
  }
  static void destroy_stream(CUstream handle) {
    static auto* const destroy = driver_function<decltype(cuStreamDestroy)>("cuStreamDestroy_v2");
    gpumem::check(destroy(handle), "cuStreamDestroy");
  }
  static std::uintptr_t allocate(std::size_t bytes) {
    CUdeviceptr p{};
    gpumem::check(gpumem::driver().mem_alloc(&p, bytes), "cuMemAlloc");
    return p;
  }
  void wait_for_flag(CUstream stream, std::uint32_t value) const {
    static auto* const wait = driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32_v2");
    gpumem::check(wait(stream, flag, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
  }
  void write_flag(CUstream stream, std::uint32_t value) const {
    static auto* const write = driver_function<decltype(cuStreamWriteValue32)>("cuStreamWriteValue32_v2");
    gpumem::check(write(stream, flag, value, 0), "cuStreamWriteValue32");
  }
};

fixtures& fixed() {
  static auto* const one = new fixtures;
  return *one;
}

struct live_block {
  void* pointer = nullptr;
  std::size_t bytes = 0;
  int home = 0;      // its lane; -1: the host
  int thread = -1;   // the only one that may use it: its lane means another stream to others
  bool read = false; // by recorded uses, so that nothing else may write it before its free
};

// One program: a pool, what is live in it, and the streams that come and go.
class program {
public:
  program(std::uint64_t seed, program_options const& how) : seed_{seed}, how_{how} {
    chance c{seed};
    auto& f = fixed();
    region_.base = f.region;
    gpumem::pool_options options;
    if (!c.one_in(4)) options.limit = c.of({std::size_t{3}, std::size_t{5}, std::size_t{9}}) * MiB;
    region_.capacity = c.of({std::size_t{4}, std::size_t{6}, std::size_t{12}}) * MiB;
    region_.fail_every = c.one_in(3) ? 2 + static_cast<unsigned>(c.below(4)) : 0;
    if (c.one_in(4)) options.initial_size = 1 * MiB;
    if (c.one_in(4)) options.release_threshold = c.below(3) * 2 * MiB;
    options.cross_stream = c.one_in(7)   ? gpumem::reuse::own
                           : c.one_in(6) ? gpumem::reuse::completed
                                         : gpumem::reuse::wait;
    for (auto which : {foreign_c, foreign_d}) {
      foreign_[which] = fixtures::make_stream(c.one_in(2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
    }
    pool_.emplace(simulator::checked{region_upstream{region_}}, options);
    checked_.emplace(*pool_);
  }

  void body(int thread);
  program_result finish();

private:
  struct actor;
  using event_type = gpumem::event;

  void fail(std::string text) {
    std::scoped_lock const held{guard_};
    if (result_.failure.empty()) result_.failure = std::move(text);
  }
  void note(std::uint64_t what) {
    std::scoped_lock const held{guard_};
    trace_ = (trace_ ^ what) * 0x100000001b3u;
  }
  void count(char const* what) {
    std::scoped_lock const held{guard_};
    ++result_.counts[what];
  }
  std::uint64_t offset(void const* p) const {
    return p ? reinterpret_cast<std::uintptr_t>(p) - region_.base : ~std::uint64_t{0};
  }
  cuda::stream_ref stream_of(int which) {
    auto& f = fixed();
    switch (which) {
    case own_a: return f.a;
    case own_b: return f.b;
    case spin: return f.spin;
    case adopted: return f.adopted;
    case legacy: return cuda::stream_ref{CU_STREAM_LEGACY};
    case null: return cuda::stream_ref{static_cast<CUstream>(nullptr)};
    case per_thread: return cuda::stream_ref{CU_STREAM_PER_THREAD};
    default: return cuda::stream_ref{foreign_[which]};
    }
  }

  // A lane that is in use is not recycled.
  int enter(actor& who);
  void enter(int which);
  void leave(int which);
  std::optional<live_block> pick(actor& who);
  void put(live_block const& block);

  void step(actor& who);
  void allocate(actor& who);
  void allocate_by_host(actor& who);
  void use(actor& who);
  void free_at_home(actor& who);
  void free_elsewhere(actor& who);
  void free_by_identity(actor& who);
  void free_by_host(actor& who);
  void record_use(actor& who);
  void order_lanes(actor& who);
  void look_for_completion(actor& who);
  void trim(actor& who);
  void spin_and_allocate(actor& who);
  void recycle_stream(actor& who);
  void check_conservation(actor& who);

  void work(int which, live_block const& block) {
    simulator::work(stream_of(which), {simulator::write(block.pointer, block.bytes)}, std::chrono::microseconds{5});
  }
  void order(event_type& by, int from, int to) {
    by.record(stream_of(from));
    by.make_wait(stream_of(to));
  }
  void told_free(bool elsewhere) {
    std::scoped_lock const held{guard_};
    ++result_.frees;
    result_.frees_elsewhere += elsewhere;
  }

  std::uint64_t const seed_;
  program_options const how_;
  region region_;
  std::array<CUstream, lanes> foreign_{};
  std::array<int, lanes> users_{};
  std::array<bool, lanes> recycling_{};
  std::optional<pool> pool_;
  std::optional<simulator::checked<pool>> checked_;
  std::mutex guard_; // never held at a mark
  std::vector<live_block> blocks_;
  std::uint64_t trace_ = 0xcbf29ce484222325u;
  program_result result_;
};

struct program::actor {
  int thread;
  chance random;
  event_type event{fixed().device};
};

int program::enter(actor& who) {
  for (;;) {
    auto const which = static_cast<int>(who.random.below(who.thread == 0 ? lanes : lanes - 1));
    std::scoped_lock const held{guard_};
    if (recycling_[which]) continue;
    ++users_[which];
    return which;
  }
}

void program::enter(int which) {
  if (which < 0) return;
  std::scoped_lock const held{guard_};
  ++users_[which];
}

void program::leave(int which) {
  if (which < 0) return;
  std::scoped_lock const held{guard_};
  --users_[which];
}

// Takes a block that the thread may use; the block keeps its lane in use.
std::optional<live_block> program::pick(actor& who) {
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

void program::put(live_block const& block) {
  std::scoped_lock const held{guard_};
  blocks_.push_back(block);
}

void program::allocate(actor& who) {
  constexpr std::size_t largest[] = {4096, 64 * 1024, 512 * 1024, 1 * MiB};
  auto const which = enter(who);
  auto const bytes = 1 + who.random.below(who.random.of(largest));
  auto const alignment = who.random.one_in(8) ? std::size_t{4096} : std::size_t{256};
  auto const got = checked_->try_allocate(stream_of(which), bytes, alignment);
  note(got ? offset(*got) : 1 + static_cast<unsigned>(got.error().what));
  if (!got) {
    leave(which);
    return;
  }
  if (reinterpret_cast<std::uintptr_t>(*got) % alignment != 0) fail("a block is not aligned");
  bool const bound = which == null || which == per_thread || which == spin;
  live_block const block{*got, bytes, which, bound ? who.thread : -1};
  work(which, block);
  put(block);
}

void program::allocate_by_host(actor& who) {
  auto const bytes = 1 + who.random.below(64 * 1024);
  void* p = nullptr;
  try {
    p = checked_->allocate_sync(bytes);
  } catch (gpumem::out_of_memory const&) {}
  note(offset(p));
  if (p) put({p, bytes, -1, -1});
}

void program::use(actor& who) {
  auto const block = pick(who);
  if (!block) return;
  if (block->home >= 0 && !block->read) work(block->home, *block);
  put(*block);
}

void program::free_at_home(actor& who) {
  auto const block = pick(who);
  if (!block) return;
  if (block->home < 0) {
    checked_->deallocate_sync(block->pointer, block->bytes);
  } else if (who.random.one_in(8)) {
    checked_->deallocate(stream_of(block->home), block->pointer);
  } else {
    checked_->deallocate(stream_of(block->home), block->pointer, block->bytes);
  }
  told_free(false);
  leave(block->home);
}

void program::free_elsewhere(actor& who) {
  auto const block = pick(who);
  if (!block) return;
  auto const to = enter(who);
  if (block->home >= 0) order(who.event, block->home, to);
  if (who.random.one_in(2) && !block->read) work(to, *block);
  checked_->deallocate(stream_of(to), block->pointer, block->bytes);
  told_free(to != block->home);
  leave(to);
  leave(block->home);
}

// As an allocation's destructor does: the pool may not touch a foreign handle.
void program::free_by_identity(actor& who) {
  auto const block = pick(who);
  if (!block) return;
  if (block->home < 0) return put(*block);
  auto const key = gpumem::identify(stream_of(block->home), fixed().device).by_identity();
  simulator::detail::freed(0, stream_of(block->home).get(), false, block->pointer, block->bytes);
  auto const services = pool_->services();
  services.table->deallocate_keyed(services.state, &key, block->pointer, block->bytes, 256);
  told_free(false);
  leave(block->home);
}

void program::free_by_host(actor& who) {
  auto const block = pick(who);
  if (!block) return;
  if (block->home >= 0) {
    who.event.record(stream_of(block->home));
    who.event.synchronize();
  }
  checked_->deallocate_sync(block->pointer, block->bytes);
  told_free(block->home >= 0);
  leave(block->home);
}

// A use elsewhere that the free need not be ordered after.
void program::record_use(actor& who) {
  auto block = pick(who);
  if (!block) return;
  auto const to = enter(who);
  if (block->home >= 0) order(who.event, block->home, to);
  simulator::work(stream_of(to), {simulator::read(block->pointer, block->bytes)}, std::chrono::microseconds{5});
  try {
    checked_->record_use(block->pointer, stream_of(to));
  } catch (gpumem::cuda_error const& e) { fail(std::string{"record_use: "} + e.what()); }
  leave(to);
  block->read = true;
  if (block->home < 0 || who.random.one_in(2)) return put(*block);
  checked_->deallocate(stream_of(block->home), block->pointer, block->bytes);
  told_free(to != block->home);
  leave(block->home);
}

void program::order_lanes(actor& who) {
  auto const from = enter(who), to = enter(who);
  order(who.event, from, to);
  leave(from);
  leave(to);
}

void program::look_for_completion(actor& who) {
  auto const which = enter(who);
  who.event.record(stream_of(which));
  if (who.random.one_in(4)) {
    who.event.synchronize();
  } else {
    note(who.event.is_done());
  }
  leave(which);
}

void program::trim(actor& who) {
  auto const given = pool_->trim(who.random.below(3) * MiB);
  note(given);
  if (given) count("trims");
}

// A persistent kernel: what the stream was given after a free ends only when another stream gets to work that comes
// later. No wait and no call of the pool's may keep the thread from giving it.
void program::spin_and_allocate(actor& who) {
  auto& f = fixed();
  auto const bytes = 1 + who.random.below(256 * 1024);
  auto const to = enter(who);
  auto const freed = checked_->try_allocate(f.spin, bytes);
  if (freed) {
    live_block const block{*freed, bytes, spin, -1};
    work(spin, block);
    checked_->deallocate(f.spin, block.pointer, bytes);
    told_free(false);
  }
  auto const value = ++f.flag_value;
  f.wait_for_flag(f.spin.get(), value);
  auto const got = to == spin ? decltype(freed){nullptr} : checked_->try_allocate(stream_of(to), bytes);
  auto const writer = to == spin ? static_cast<int>(own_a) : to;
  if (got && *got) work(to, {*got, bytes, to, -1});
  f.write_flag(stream_of(writer).get(), value);
  note(got ? offset(*got) : 1);
  if (got && *got) {
    checked_->deallocate(stream_of(to), *got, bytes);
    told_free(false);
  }
  leave(to);
}

// Its handle's value comes back at once as another stream.
void program::recycle_stream(actor& who) {
  auto const which = who.random.one_in(2) ? foreign_c : foreign_d;
  {
    std::scoped_lock const held{guard_};
    if (users_[which] > 0 || recycling_[which]) return;
    recycling_[which] = true;
  }
  fixtures::destroy_stream(foreign_[which]);
  foreign_[which] = fixtures::make_stream(who.random.one_in(2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
  count("streams recycled");
  std::scoped_lock const held{guard_};
  recycling_[which] = false;
}

void program::check_conservation(actor&) {
  auto& state = *static_cast<gpumem::detail::pool_state*>(pool_->services().state);
  if (!state.engine().consistent()) fail("granted and free memory are not what is reserved");
}

void program::step(actor& who) {
  struct operation {
    unsigned weight;
    void (program::*run)(actor&);
  };
  constexpr operation operations[] = {{30, &program::allocate},
                                      {2, &program::allocate_by_host},
                                      {8, &program::use},
                                      {8, &program::free_at_home},
                                      {14, &program::free_elsewhere},
                                      {2, &program::free_by_identity},
                                      {2, &program::free_by_host},
                                      {5, &program::record_use},
                                      {3, &program::order_lanes},
                                      {4, &program::look_for_completion},
                                      {2, &program::trim},
                                      {1, &program::recycle_stream},
                                      {1, &program::check_conservation}};
  if (who.thread == 0 && who.random.one_in(24)) return spin_and_allocate(who);
  auto at = who.random.below(82);
  for (auto const& each : operations) {
    if (at < each.weight) return (this->*each.run)(who);
    at -= each.weight;
  }
}

void program::body(int thread) {
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
program_result program::finish() {
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
  counts["trims"] += 0;
  counts["streams recycled"] += 0;
  counts["rung own"] = figures.reuse_own;
  counts["rung ordered"] = figures.reuse_ordered;
  counts["rung completed"] = figures.reuse_completed;
  counts["rung wait"] = figures.reuse_waited;
  counts["rung drain"] = figures.reuse_drained;
  counts["growths"] = figures.growths;
  counts["chunks given back"] = figures.releases;
  counts["joins"] = figures.joins;
  counts["joins refused"] = figures.joins_refused;
  counts["failures"] = figures.failures;
  counts["allocations"] = figures.allocations;
  if (figures.live != 0) fail("live bytes are left: " + std::to_string(figures.live));
  if (figures.limit && figures.peak_reserved > figures.limit) fail("more was reserved than the limit");
  checked_.reset();
  pool_.reset();
  if (auto const stuck = simulator::run_until_idle()) fail(std::to_string(stuck) + " operations never ran");
  for (int i = 0; i < 5000 && region_.drawn() > 0; ++i) gpumem::sync::sleep_for(std::chrono::milliseconds{1});
  // The library's threads come to rest, so that what they still do is not the next program's.
  gpumem::sync::sleep_for(std::chrono::milliseconds{20});
  if (region_.drawn() > 0) fail("chunks never went back: " + std::to_string(region_.drawn()) + " bytes");
  for (auto const which : {foreign_c, foreign_d}) {
    gpumem::identify(stream_of(which), f.device).order().poll();
    fixtures::destroy_stream(foreign_[which]);
  }
  for (auto const& found : simulator::take_findings()) fail(found.text);
  result_.trace = trace_;
  result_.operations = static_cast<std::uint64_t>(how_.threads) * static_cast<std::uint64_t>(how_.operations);
  return result_;
}

// Evidence, requests for it and counts of frees would else carry over from one program to the next.
void forget_the_past() {
  auto& f = fixed();
  simulator::run_until_idle();
  for (auto* const stream : {&f.a, &f.b, &f.spin, &f.adopted}) {
    auto& order = stream->key().order();
    order.poll();
    order.record_late(stream->get());
  }
  auto& order = gpumem::identify(cuda::stream_ref{CU_STREAM_LEGACY}, f.device).order();
  order.poll();
  order.record_late(CU_STREAM_LEGACY);
  simulator::run_until_idle();
  order.poll();
  for (auto* const stream : {&f.a, &f.b, &f.spin, &f.adopted}) stream->key().order().poll();
}

} // namespace

void prepare_programs() {
  simulator::load();
  fixed();
  std::vector<gpumem::event> spare;
  for (int i = 0; i < 2000; ++i) spare.emplace_back(fixed().device);
  gpumem::detail::synchronise_with({}, std::chrono::seconds{1});
}

program_result run_program(std::uint64_t seed, program_options const& how, program_runner const& run) {
  forget_the_past();
  simulator::seed(seed);
  program one{seed, how};
  std::vector<std::function<void()>> bodies;
  for (int i = 0; i < how.threads; ++i) bodies.emplace_back([&one, i] { one.body(i); });
  run(seed, std::move(bodies));
  return one.finish();
}

} // namespace gpumem_test
