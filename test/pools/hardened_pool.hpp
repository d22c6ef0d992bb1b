// What the tests of hardened pools share: a handler that keeps what it is told, and device work that writes bytes. To
// be included behind `import gpumem;`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

namespace simulator = gpumem::simulator;
constexpr std::chrono::seconds long_enough{10};

// A report with its own copy of the events, which the handler's lives no longer than.
struct told_misuse : gpumem::misuse {
  std::vector<gpumem::block_event> seen;
};

inline std::mutex told_guard;
inline std::vector<told_misuse> told;

inline void keep(gpumem::misuse const& m) noexcept {
  std::scoped_lock const held{told_guard};
  told.push_back({m, {m.history, m.history + m.events}});
}

// What was told since the last question.
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
    for (auto const& each : take_reports()) ADD_FAILURE() << to_string(each.what) << ", never asked for";
    simulated_test::TearDown();
  }

  // The one report that there is.
  static told_misuse only() {
    auto all = take_reports();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? told_misuse{} : all.front();
  }

  // Work that writes bytes, of which the simulated device is told nothing: it would find them itself.
  static void scribble(gpumem::stream_ref on, void* first, std::size_t bytes, char with = 1) {
    simulator::work(on, {}, {}, [=] { std::memset(first, with, bytes); });
  }

  // Waits until all is looked at, while the device runs.
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
