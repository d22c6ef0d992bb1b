// The reactors with waits on many streams: which of them a round polls.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::completion;
using gpumem::latency;
using gpumem::task;
namespace simulator = gpumem::simulator;

constexpr std::size_t count = 64;

std::uint64_t queries() { return gpumem::driver_api::driver_calls("cuEventQuery"); }
std::uint64_t rounds() { return gpumem::detail::completion_rounds(gpumem::device{0}); }

// Spins until the reactor has made ten more rounds. Then a round polls an eighth of the waits in turn.
void let_go_round() {
  auto const from = rounds();
  while (rounds() < from + 10) std::this_thread::yield();
}

class many_waits : public test::stepped_device {
protected:
  task<> wait_for(gpumem::stream_ref on, latency urgency) {
    co_await completion(on, {.latency = urgency, .resume_on = &executor});
    ++resumed;
  }

  test::manual_executor executor;
  std::size_t resumed = 0;
};

// Each query can wait for a thread that launches work. Waits mostly complete in the order in which they began.
TEST_F(many_waits, polls_the_oldest_and_some_others_in_turn) {
  constexpr std::uint64_t misses = 4 + count / 8;
  for (auto const urgency : {latency::low, latency::balanced}) {
    resumed = 0;
    std::vector<gpumem::stream> streams;
    std::vector<test::started> running;
    for (std::size_t i = 0; i < count; ++i) {
      simulator::work(streams.emplace_back(gpumem::device{0}), {}, 1us);
      running.push_back(test::start(wait_for(streams.back(), urgency)));
    }
    let_go_round();
    auto const first_round = rounds(), before = queries(); // in this order, since the reactor goes on meanwhile
    let_go_round();
    EXPECT_LE(queries() - before, (rounds() - first_round + 1) * misses);
    simulator::run_until_idle();
    while (resumed < count) {
      if (!executor.run_one()) std::this_thread::yield();
    }
  }
}

} // namespace
