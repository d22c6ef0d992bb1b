// Each public function with each of its host allocations refused once: it throws, returns an outcome, or succeeds, and
// no memory is lost.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <cuda.h>

import gpumem;

#include "../support/failing_new.hpp"
#include "parts.hpp"

namespace {

namespace simulator = gpumem::simulator;
using no_memory::row;
using no_memory::with;

std::vector<row> const& all_rows() {
  static auto const all = [] {
    std::vector<row> made;
    for (auto* const of : {&no_memory::base_rows, &no_memory::resource_rows, &no_memory::adaptor_rows,
                           &no_memory::container_rows, &no_memory::coroutine_rows, &no_memory::extend_rows})
      for (row const& each : of()) made.push_back(each);
    return made;
  }();
  return all;
}

std::string test_name(std::string names) {
  for (char& each : names)
    if (each == ' ' || each == ':') each = '_';
  return names.substr(0, 60);
}

void load() {
  simulator::options how;
  how.devices = 2;
  how.mode = simulator::stepping::immediate;
  how.pageable_memory = true;
  simulator::load(how);
}

// The first test of the program, so that what the library makes once is made without memory.
TEST(first_use, ends_with_an_error_and_loses_nothing) {
  if (!test::new_can_fail) GTEST_SKIP();
  load();
  row const first{"first use", [] {
                    no_memory::parts made;
                    void* const block = made.pool.allocate(made.own, no_memory::MiB, 256);
                    made.pool.deallocate(made.own, block, no_memory::MiB, 256);
                  }};
  no_memory::run(first, false, [] {}, [] {});
  for (auto const& found : simulator::take_findings()) ADD_FAILURE() << found.text;
}

// No free would wake such a request. Another block is live, so that the request may wait.
TEST(waiting, request_ends_if_the_host_has_no_memory_for_it) {
  if (!test::new_can_fail) GTEST_SKIP();
  load();
  for (bool const hardened : {false, true}) {
    gpumem::pool_resource pool{gpumem::device{0}, {.pages = false, .hardened = {.enabled = hardened}}};
    gpumem::stream const on{gpumem::device{0}};
    gpumem::allocation const held = pool.acquire(on, 4096).wait();
    auto const latest = std::chrono::steady_clock::now() + std::chrono::seconds{2};
    auto const ended = [&] {
      test::failing_new const scarce;
      return pool.acquire(on, 64 * no_memory::MiB).wait_until(latest);
    }();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason, gpumem::outcome::exhausted) << "hardened " << hardened;
  }
}

class no_host_memory : public testing::TestWithParam<std::size_t> {
protected:
  static void SetUpTestSuite() { load(); }
  static void begin() {
    gpumem::driver_api::driver().ctx_set_current(with().card.context());
    simulator::take_findings();
    ASSERT_EQ(gpumem::driver_api::driver().stream_create(&with().raw, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  // O10: what was granted was freed, and allocated and free bytes are the reserved ones.
  static void end() {
    EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(with().raw), CUDA_SUCCESS);
    // The library thread gives the memory of a pool that has ended back to its upstream.
    auto const latest = std::chrono::steady_clock::now() + std::chrono::seconds{5};
    while (with().pool.statistics().live != 0 && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
    EXPECT_EQ(with().pool.statistics().live, 0u);
    EXPECT_TRUE(static_cast<gpumem::detail::pool_state*>(with().pool.services().state)->engine().is_consistent());
    for (auto const& found : simulator::take_findings()) ADD_FAILURE() << found.text;
  }
  // Memory of the device beside that of the pool that lives on. Other threads may still give some back.
  static void expect_held(std::size_t before) {
    auto const latest = std::chrono::steady_clock::now() + std::chrono::seconds{5};
    while (held() > before && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
    EXPECT_LE(held(), before) << "memory of the device is lost";
  }
  static std::size_t held() {
    gpumem::trim(with().pool);
    with().pool.synchronize(std::chrono::seconds{1});
    gpumem::driver_api::driver().ctx_synchronize();
    return simulator::report().bytes_allocated;
  }
};

INSTANTIATE_TEST_SUITE_P(row, no_host_memory, testing::Range(std::size_t{0}, all_rows().size()), [](auto const& of) {
  return test_name(all_rows()[of.param].names) + "_" + std::to_string(of.param);
});

TEST_P(no_host_memory, ends_with_an_error_and_loses_nothing) {
  if (!test::new_can_fail) GTEST_SKIP();
  row const& which = all_rows()[GetParam()];
  no_memory::run(which, false, begin, end); // with what is made once in the process
  std::size_t const before = held();
  no_memory::run(which, true, begin, end);
  if (!which.keeps) expect_held(before);
}

// glibc ends the process if it has no memory for the record of the function, so the library asks for memory before.
TEST(thread_exit, registration_without_memory_throws) {
  if (!test::new_can_fail) GTEST_SKIP();
  test::failing_new const none;
  EXPECT_THROW(gpumem::detail::sync::at_thread_exit([]() noexcept {}), std::bad_alloc);
}

} // namespace
