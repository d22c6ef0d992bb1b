// Three requests for a small pool's memory, in every sequence of events up to a length. One thread runs; gpumem's own
// thread runs while the test sleeps, by the clock of the schedules.
// SPDX-License-Identifier: Apache-2.0
#include "../support/choices.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "waiting_request.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem::outcome;
using gpumem_test::waiting_request;
using namespace std::chrono_literals;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;

constexpr std::size_t MiB = std::size_t{1} << 20;

#if __has_feature(address_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

struct settings {
  char const* name;
  gpumem::reuse_policy how;
  unsigned max_overtakes;
  bool works;      // the device works on each block until the program lets it complete
  bool everything; // also closing, requests that do not wait, and more stops and destructions
  std::size_t length;
};

// The pool of one run; three holders have all its memory at first.
class scene {
public:
  scene(settings const& with, std::array<gpumem::stream, 2>& streams, pool& from)
      : with_{with}, streams_{streams}, pool_{from} {
    pool_.deallocate_sync(pool_.allocate_sync(4 * MiB), 4 * MiB); // makes one chunk
    for (std::size_t i = 0; i < 3; ++i) {
      blocks_[i] = pool_.acquire(streams_[i % 2], i == 2 ? 2 * MiB : MiB).wait();
      if (with_.works) simulator::work(blocks_[i].stream(), {simulator::write(blocks_[i].data(), blocks_[i].bytes())});
    }
  }

  // Does one of the events that are possible now; returns false if the sequence ends.
  bool step(gpumem_test::choices& path) {
    list_what_can_happen();
    auto const taken = path.choose(can_.size() + 1, false);
    if (taken == 0) return false;
    auto const& [name, act] = can_[taken - 1];
    happened_ += (happened_.empty() ? "" : ", ") + name;
    act();
    check();
    return true;
  }

  // Frees all blocks while the device becomes idle, so that no request has to wait.
  void finish() {
    for (int round = 0; round < 20 && !free_all(); ++round) let_device_run();
    for (auto& each : requests_) {
      if (each && each->open()) wrong_ += "a request was left waiting; ";
    }
    check();
    auto const left = pool_.statistics();
    if (left.live + left.allocated > 0) wrong_ += "memory was lost; ";
    if (left.peak_reserved > 4 * MiB) wrong_ += "more than the limit; ";
    auto& engine = static_cast<gpumem::detail::pool_state*>(pool_.services().state)->engine();
    if (!engine.is_consistent()) wrong_ += "inconsistent; ";
    if (engine.has_waiting()) wrong_ += "a request still waits; ";
    simulator::run_until_idle();
    pool_.synchronize({}); // records the events to be polled
    simulator::run_until_idle();
    if (pool_.trim(); pool_.statistics().reserved > 0) wrong_ += "memory stays in use; ";
    for (auto const& each : simulator::take_findings()) wrong_ += each.text + "; ";
  }

  bool closed() const { return closed_; }
  std::string const& wrong() const { return wrong_; }
  std::string const& happened() const { return happened_; }

private:
  static constexpr std::array<std::size_t, 3> sizes{MiB, 3 * MiB, 2 * MiB};
  static constexpr std::array<int, 3> priorities{0, 0, 1};

  void add(char const* what, std::size_t which, std::function<void()> act) {
    can_.emplace_back(what + std::string(1, static_cast<char>('a' + which)), std::move(act));
  }
  // So that sequences can be longer, some events are left out: those while no request is open, and most stops and
  // destructions. Only one request is stopped and one is destroyed; with `everything`, two of each.
  void list_what_can_happen() {
    can_.clear();
    for (std::size_t i = 0; i < requests_.size(); ++i) list_what_can_happen_to(i);
    if (std::ranges::none_of(requests_, [](auto const& each) { return each && each->open(); })) return;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].bytes() > 0) add("free ", i, [this, i] { blocks_[i].reset(); });
    }
    if (with_.works && busy_) can_.emplace_back("device", [this] { let_device_run(); });
    if (closed_ || !with_.everything) return;
    can_.emplace_back("allocate", [this] { allocate(); });
    can_.emplace_back("close", [this] {
      pool_.close();
      closed_ = true;
    });
  }
  void list_what_can_happen_to(std::size_t i) {
    auto& one = requests_[i];
    if (!one && !closed_) {
      add("ask ", i, [this, i] { requests_[i].emplace(pool_, streams_[1 - i % 2], sizes[i], priorities[i]); });
    }
    if (!one || !one->open()) return;
    if (one->called()) add("resume ", i, [&one] { one->resume(); });
    if (i == 0 || (i == 1 && with_.everything)) add("destroy ", i, [&one] { one->destroy(); });
    if ((i == 1 || (i == 2 && with_.everything)) && !one->stopped()) add("stop ", i, [&one] { one->stop(); });
  }
  void allocate() {
    if (auto const got = pool_.try_allocate(streams_[0], MiB)) pool_.deallocate(streams_[0], *got, MiB);
  }
  // Returns whether all requests have ended.
  bool free_all() {
    for (auto& each : blocks_) each.reset();
    bool ended = true;
    for (auto& each : requests_) {
      if (!each) continue;
      for (int i = 0; i < 100 && each->called(); ++i) each->resume(); // gives up on one resumed forever
      each->block().reset();
      ended = ended && !each->open();
    }
    return ended;
  }
  void let_device_run() {
    busy_ = false;
    simulator::run_until_idle();
    gpumem::detail::sync::sleep_for(2ms);
  }

  void check() {
    std::size_t live = 0, open = 0, withdrawn = 0;
    for (auto const& each : blocks_) live += each.bytes();
    for (auto& each : requests_) {
      if (!each) continue;
      live += each->block().bytes();
      open += each->open();
      withdrawn += each->open() && each->stopped();
      if (each->ends() > 1) wrong_ += "two outcomes; ";
      if (each->ended() && !may_end(*each))
        wrong_ += "ended as number " + std::to_string(static_cast<int>(*each->ended())) + "; ";
      if (each->open() && closed_ && !each->called()) wrong_ += "not told that the pool is closed; ";
    }
    auto const seen = pool_.statistics();
    if (seen.live != live) wrong_ += "live bytes are miscounted; ";
    if (seen.waiting > open || (!closed_ && seen.waiting + withdrawn < open))
      wrong_ += "requests that wait are miscounted; ";
  }
  bool may_end(waiting_request const& one) const {
    switch (*one.ended()) {
    case outcome::granted: return true;
    case outcome::stopped: return one.stopped();
    case outcome::closed: return closed_;
    default: return false;
    }
  }

  settings const& with_;
  std::array<gpumem::stream, 2>& streams_;
  pool& pool_;
  std::array<gpumem::allocation, 3> blocks_;
  std::array<std::optional<waiting_request>, 3> requests_;
  std::vector<std::pair<std::string, std::function<void()>>> can_;
  bool closed_ = false, busy_ = true;
  std::string happened_, wrong_;
};

class pool_waiting_sequences : public testing::Test {
protected:
  static void SetUpTestSuite() {
    simulator::load({.mode = simulator::stepping::manual});
    simulator::set_schedule_hooks(nullptr, [](void*) { return gpumem::detail::schedule::blocked(); }, nullptr);
  }

  static pool make_pool(settings const& with) {
    return pool{gpumem::device{0},
                {.limit = 4 * MiB, .pages = false, .cross_stream = with.how, .max_overtakes = with.max_overtakes}};
  }
  void run_all(settings const& with) {
    std::array<gpumem::stream, 2> streams{gpumem::stream{gpumem::device{0}}, gpumem::stream{gpumem::device{0}}};
    gpumem_test::choices path{0};
    std::uint64_t runs = 0;
    std::optional<pool> shared;
    do {
      if (!shared) shared.emplace(make_pool(with)); // reused, since making a pool takes most of the time
      scene one{with, streams, *shared};
      for (std::size_t i = 0; i < with.length && one.wrong().empty() && one.step(path); ++i) {}
      if (one.wrong().empty()) one.finish();
      ASSERT_EQ(one.wrong(), "") << "run " << runs << ": " << one.happened();
      ASSERT_FALSE(path.diverged()) << "run " << runs << ": the same choices were another run";
      ++runs;
      if (one.closed()) shared.reset();
    } while (path.next());
    std::printf("%-20s %8llu sequences of up to %zu\n", with.name, static_cast<unsigned long long>(runs), with.length);
  }
};

TEST_F(pool_waiting_sequences, every_request_ends_once) {
  auto const* const asked = std::getenv("GPUMEM_LENGTH");
  using gpumem::reuse_policy;
  settings all[] = {{"without work", reuse_policy::wait, 16, false, true, 6},
                    {"without overtaking", reuse_policy::wait, 0, false, true, 5},
                    {"with work", reuse_policy::wait, 1, true, true, 5},
                    {"completed", reuse_policy::completed, 1, true, true, 5},
                    {"own", reuse_policy::ordered, 1, true, true, 5},
                    {"longer", reuse_policy::wait, 1, false, false, 7},
                    {"longer, completed", reuse_policy::completed, 1, true, false, 6}};
  for (auto& each : all) {
    if (sanitized) --each.length; // a sequence takes several times as long, and most are one event longer
    if (asked) each.length = std::strtoul(asked, nullptr, 10);
    // the thread of the run keeps the processor until it sleeps
    gpumem::detail::schedule::run([](std::size_t, bool) { return 0; }, {[&] { run_all(each); }});
  }
}

} // namespace
