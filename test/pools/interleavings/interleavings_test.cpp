// Runs small programs of two threads, two streams and four operations in every interleaving of their schedule points
// with few preemptions. The device is slow: freed memory stays in use until a thread waits for it.
// SPDX-License-Identifier: Apache-2.0
#include "../property/region_upstream.hpp"
#include "../../support/choices.hpp"
#include "../../support/schedule_seeds.hpp"

#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "pool_fixture.hpp"
#include "programs.hpp"

namespace {

using gpumem_test::choices;
using gpumem_test::every;
using gpumem_test::fixed;
using gpumem_test::program;
using gpumem_test::programs;
using gpumem_test::pool_fixture;

// A slow device: it works only while a thread sleeps.
gpumem::detail::sync::time_point device_ran;
void run_device_late(void*) {
  if (gpumem::detail::sync::now() < device_ran ||
      gpumem::detail::sync::now() - device_ran < std::chrono::microseconds{20})
    return;
  gpumem::simulator::run_until_idle();
  device_ran = gpumem::detail::sync::now();
}

std::string run_once(program const& what, choices& path) {
  gpumem::detail::sync::sleep_for(std::chrono::milliseconds{100}); // until gpumem's own threads are idle
  fixed().synchronize();
  device_ran = gpumem::detail::sync::time_point::max(); // the device does not run during the program
  auto const made = what.prepare();
  auto const guarded = [&](void (*body)(pool_fixture&)) {
    return [&made, body] {
      try {
        gpumem::device_guard const here{fixed().device};
        body(*made);
      } catch (std::exception const& e) { made->fail(std::string{"an exception: "} + e.what()); }
    };
  };
  gpumem::detail::sync::sleep_for(std::chrono::milliseconds{100});
  device_ran = gpumem::detail::sync::now();
  gpumem::detail::schedule::run(
      [&](std::size_t candidates, bool may_stay) { return path.choose(candidates, may_stay); },
      {guarded(what.first), guarded(what.second)});
  return made->finish();
}

// Runs the program once beforehand, so that one-time initialization is the same in all counted runs.
void warm_up(program const& what) {
  choices first{1};
  do { ASSERT_EQ(run_once(what, first), "") << what.name; } while (first.next());
}

class interleavings : public testing::Test {
protected:
  static void SetUpTestSuite() {
    gpumem::simulator::load({.mode = gpumem::simulator::stepping::manual});
    gpumem::simulator::set_schedule_hooks(
        run_device_late, [](void*) { return gpumem::detail::schedule::blocked(); }, nullptr);
  }
};

TEST_F(interleavings, small_programs_are_correct_in_every_interleaving) {
  test::schedule_seeds::of_list(std::size(programs)).each([](std::uint64_t number) {
    auto const& what = *programs[(number - 1) % std::size(programs)];
    warm_up(what);
    auto const* const asked = std::getenv("GPUMEM_PREEMPTIONS");
    auto const most = asked ? static_cast<unsigned>(std::atoi(asked)) : what.most_preemptions;
    choices path{most};
    std::uint64_t runs = 0;
    std::size_t longest = 0;
    do {
      auto const wrong = run_once(what, path);
      ASSERT_EQ(wrong, "") << what.name << ", run " << runs << ", GPUMEM_SEED=" << number << ": choices"
                           << path.to_text();
      ASSERT_FALSE(path.diverged()) << what.name << ", run " << runs << ", GPUMEM_SEED=" << number
                                    << ": the same choices were another run";
      ++runs;
      longest = std::max(longest, path.places());
    } while (path.next());
    auto const bound = most == every ? "all there are" : "up to " + std::to_string(most) + " preemptions";
    std::printf("%-32s %8llu interleavings, %s, with up to %zu schedule points\n", what.name,
                static_cast<unsigned long long>(runs), bound.c_str(), longest);
  });
}

} // namespace
