// The setting of a small program with two threads and two streams: a pool, its live blocks, and checks at the end.
// Include it after `import gpumem;` and the headers that interleavings_test.cpp includes before: it includes nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

namespace simulator = gpumem::simulator;
inline constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

// Objects that all runs share, since the simulated device's checker keeps a record for each owner of blocks.
struct shared_fixtures {
  gpumem::device device = gpumem::device::current();
  std::vector<gpumem::stream> all = make(6);
  gpumem_test::region& memory = made_region();
  simulator::checked<region_upstream> upstream{region_upstream{memory}};
  std::uint64_t owner = simulator::detail::new_owner();

  std::vector<gpumem::stream> make(int count) {
    std::vector<gpumem::stream> made;
    for (int i = 0; i < count; ++i) made.emplace_back(device);
    return made;
  }
  static gpumem_test::region& made_region() {
    static gpumem_test::region one;
    CUdeviceptr p{};
    gpumem::driver_api::check(gpumem::driver_api::driver().mem_alloc(&p, 32 * MiB), "cuMemAlloc");
    one.base = p;
    return one;
  }
  // Waits until all enqueued work is complete and the timelines know it.
  void synchronize() {
    simulator::run_until_idle();
    for (auto const& each : all) {
      auto& timeline = gpumem::extend::identify(each, device).identity().timeline();
      timeline.prepare();
      timeline.record_later(each.get());
      simulator::run_until_idle();
      timeline.poll();
    }
  }
};

inline shared_fixtures& fixed() {
  static auto* const one = new shared_fixtures;
  return *one;
}

class pool_fixture {
public:
  pool_fixture(std::size_t capacity, gpumem::pool_options const& options) {
    fixed().memory.capacity = capacity;
    hold(gpumem::pool_resource{fixed().upstream, options});
  }
  // Makes a pool over pages of the device.
  explicit pool_fixture(gpumem::pool_options const& options) {
    hold(gpumem::pool_resource{fixed().device, options, {.address_space = 32 * MiB}});
  }

  static gpumem::stream& a() { return fixed().all[0]; }
  static gpumem::stream& b() { return fixed().all[1]; }

  // Allocates a block and enqueues work on it; returns null if the request failed. A request must not fail while no
  // thread holds memory.
  void* allocate(gpumem::stream const& on, std::size_t bytes) {
    auto const seen = taken_;
    bool const others = users_ > 0;
    ++taken_, ++users_;
    auto const got = state_->try_allocate(gpumem::extend::identify(on, fixed().device).with_waiting(), bytes, 256);
    if (!got) {
      --users_;
      if (!others && taken_ == seen + 1) fail("a request failed while no thread held memory");
      return nullptr;
    }
    simulator::detail::allocated(fixed().owner, on.get(), false, *got, bytes);
    work(on, *got, bytes);
    live_[*got] = {bytes, &on};
    return *got;
  }
  void free(gpumem::stream const& on, void* p) {
    if (!p) return;
    auto const bytes = live_.extract(p).mapped().bytes;
    simulator::detail::freed(fixed().owner, on.get(), false, p, bytes);
    state_->deallocate(gpumem::extend::identify(on, fixed().device), p, bytes, 256);
    --users_;
  }
  void work(gpumem::stream const& on, void* p, std::size_t bytes) {
    simulator::work(on, {simulator::write(p, bytes)}, std::chrono::microseconds{1});
  }
  // Orders `to` after all work that was enqueued on `from`.
  void order(gpumem::stream const& from, gpumem::stream const& to) {
    gpumem::event happened{fixed().device};
    happened.record(from);
    happened.make_wait(to);
  }
  void trim() { state_->trim(0); }
  // While memory is released, it counts as reserved alone.
  void read_statistics() {
    auto const now = state_->read_statistics();
    if (now.allocated + now.cached + now.free > now.reserved) fail("memory was counted twice");
  }
  // Drops one handle; the pool has one per thread.
  void drop_handle() {
    auto const one = std::exchange(handles_.back(), nullptr);
    handles_.pop_back();
  }
  // Captures an empty graph. Requests may fail meanwhile.
  void capture(gpumem::stream& which) {
    ++taken_, ++users_;
    which.begin_capture();
    gpumem::driver_api::check(gpumem::driver_api::driver().graph_destroy(which.end_capture()), "cuGraphDestroy");
    --users_;
  }
  void fail(std::string text) {
    if (failure_.empty()) failure_ = std::move(text);
  }

  std::vector<void*> kept; // blocks that the threads free

  // Frees all blocks and returns what is wrong; empty if nothing is.
  std::string finish() {
    while (!live_.empty()) free(*live_.begin()->second.on, live_.begin()->first);
    fixed().synchronize();
    if (!handles_.empty()) {
      if (!state_->engine().is_consistent()) fail("allocated and free bytes are not the reserved bytes");
      if (state_->read_statistics().live != 0) fail("live bytes are left");
    }
    while (!handles_.empty()) drop_handle();
    for (int i = 0; i < 100 && outstanding() > 0; ++i) {
      simulator::run_until_idle();
      gpumem::detail::sync::sleep_for(std::chrono::milliseconds{1});
    }
    if (outstanding() > 0) fail("memory was never returned to the upstream");
    for (auto const& found : simulator::take_findings()) fail(found.text);
    return failure_;
  }

private:
  struct block {
    std::size_t bytes;
    gpumem::stream const* on;
  };
  template <class Pool> void hold(Pool const& pool) {
    handles_ = {std::make_shared<Pool>(pool), std::make_shared<Pool>(pool)};
    state_ = static_cast<gpumem::detail::pool_state*>(pool.services().state);
  }
  std::size_t outstanding() { return fixed().memory.drawn() + simulator::report().mappings; }

  std::vector<std::shared_ptr<void>> handles_;
  gpumem::detail::pool_state* state_ = nullptr;
  std::map<void*, block> live_; // no lock: one thread runs at a time
  int users_ = 0;               // live blocks and running requests
  int taken_ = 0;               // number of requests so far
  std::string failure_;
};

} // namespace gpumem_test
