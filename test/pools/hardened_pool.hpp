// Shared parts of the tests of hardened pools: a handler that stores reports, and device work that writes bytes.
// Include it after `import gpumem;`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

namespace simulator = gpumem::simulator;
constexpr std::chrono::seconds long_enough{10};

// A report with a copy of its events: the handler's events live only during the call.
struct told_misuse : gpumem::misuse {
  std::vector<gpumem::block_event> seen;
};

inline std::mutex told_guard;
inline std::vector<told_misuse> told;

inline void keep(gpumem::misuse const& m) noexcept {
  std::scoped_lock const held{told_guard};
  told.push_back({m, {m.history, m.history + m.events}});
}

// Returns the reports since the last call.
inline std::vector<told_misuse> take_reports() {
  std::scoped_lock const held{told_guard};
  return std::exchange(told, {});
}

inline gpumem::pool_options hardened(gpumem::hardening_options how = {.enabled = true}) {
  how.enabled = true;
  return {.name = "tested", .hardened = how};
}

inline char* bytes_at(void* pointer) { return static_cast<char*>(pointer); }

class hardened_test : public simulated_test {
protected:
  hardened_test() {
    take_reports();
    before_ = gpumem::set_misuse_handler(keep);
  }
  ~hardened_test() override { gpumem::set_misuse_handler(before_); }
  void TearDown() override {
    for (auto const& each : take_reports()) ADD_FAILURE() << to_string(each.what) << ", which the test did not check";
    simulated_test::TearDown();
  }

  // Returns the only report.
  static told_misuse only() {
    auto all = take_reports();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? told_misuse{} : all.front();
  }

  // Work that writes bytes without telling the simulated device's checker, which would report the fault itself.
  static void scribble(gpumem::stream_ref on, void* first, std::size_t bytes, char with = 1) {
    simulator::work(on, {}, {}, [=] { std::memset(first, with, bytes); });
  }

  // Waits until the pool has checked all blocks, while the device runs.
  template <class Pool> static bool synchronized(Pool& of) {
    gpumem_test::running_device const running;
    return of.synchronize(long_enough);
  }

  gpumem::device device = gpumem::device::current();
  gpumem::stream s{device}, t{device};

private:
  gpumem::misuse_handler before_;
};

constexpr std::size_t KiB = std::size_t{1} << 10, MiB = std::size_t{1} << 20;

} // namespace gpumem_test
