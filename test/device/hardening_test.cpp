// A hardened pool on a real device: it reports kernels that write out of bounds or after the free, and no correct ones.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::chrono::seconds long_enough{10};

std::mutex told_guard;
std::vector<misuse> told; // without the events, which live only during the call

} // namespace

class hardening_on_device : public device_test {
protected:
  void SetUp() override {
    device_test::SetUp();
    told.clear();
    before_ = set_misuse_handler([](misuse const& m) noexcept {
      std::scoped_lock const held{told_guard};
      told.push_back(m);
    });
  }
  void TearDown() override {
    set_misuse_handler(before_);
    device_test::TearDown();
  }

  static void expect(misuse::kind what, void const* pointer, std::ptrdiff_t offset, std::size_t overwritten) {
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].what, what) << to_string(told[0].what);
    EXPECT_EQ(told[0].pointer, pointer);
    EXPECT_EQ(told[0].offset, offset);
    EXPECT_EQ(told[0].overwritten, overwritten);
    told.clear();
  }

private:
  misuse_handler before_ = nullptr;
};

TEST_F(hardening_on_device, overrun_by_a_kernel_is_found) {
  for (std::size_t const bytes : {std::size_t{1000}, std::size_t{64} << 10, 16 * MiB}) {
    pool_resource pool{device{0}, {.hardened = {.enabled = true}}};
    stream on{device{0}};
    auto* const p = pool.allocate(on, bytes);
    stamp::write(on.get(), p, bytes + 16, 1, 100);
    pool.deallocate(on, p, bytes);
    ASSERT_TRUE(pool.synchronize(long_enough));
    expect(misuse::kind::overrun, p, static_cast<std::ptrdiff_t>(bytes), 16);
  }
}

TEST_F(hardening_on_device, underrun_by_a_kernel_is_found) {
  pool_resource pool{cuda_resource{device{0}}, {.hardened = {.enabled = true}}};
  stream on{device{0}};
  auto* const p = static_cast<char*>(pool.allocate(on, MiB));
  stamp::write(on.get(), p - 8, MiB, 1);
  pool.deallocate(on, p, MiB);
  ASSERT_TRUE(pool.synchronize(long_enough));
  expect(misuse::kind::underrun, p, -1, 8);
}

TEST_F(hardening_on_device, write_after_the_free_is_found) {
  for (std::size_t const bytes : {std::size_t{1024}, 16 * MiB}) {
    pool_resource pool{device{0}, {.hardened = {.enabled = true}}};
    stream on{device{0}};
    auto* const p = pool.allocate(on, bytes);
    stamp::write(on.get(), p, bytes, 1);
    pool.deallocate(on, p, bytes);
    stamp::write(on.get(), static_cast<char*>(p) + 512, 8, 2, 100);
    on.synchronize();
    ASSERT_TRUE(pool.synchronize(long_enough));
    expect(misuse::kind::use_after_free, p, 512, 8);
  }
}

TEST_F(hardening_on_device, double_free_by_two_threads_is_found) {
  pool_resource pool{device{0}, {.hardened = {.enabled = true}}};
  stream on{device{0}};
  for (int i = 0; i < 100; ++i) {
    auto* const p = pool.allocate(on, MiB);
    std::thread other{[&] { pool.deallocate(on, p, MiB); }};
    pool.deallocate(on, p, MiB);
    other.join();
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].what, misuse::kind::double_free);
    told.clear();
  }
  EXPECT_TRUE(pool.synchronize(long_enough));
}

TEST_F(hardening_on_device, correct_program_has_no_findings) {
  pool_resource pool{device{0}, {.limit = 64 * MiB, .hardened = {.enabled = true, .quarantine = 16 * MiB}}};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      stream on{device{0}};
      std::mt19937_64 rng{t};
      for (std::uint64_t i = 0; i < 2000; ++i) {
        auto const bytes = std::size_t{8} << rng() % 18;
        auto* const p = pool.allocate(on, bytes);
        stamp::write(on.get(), p, bytes, t << 32 | i, rng() % 8 ? 0 : 20);
        stamp::check(on.get(), p, bytes, t << 32 | i, wrong_);
        pool.deallocate(on, p, bytes);
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_TRUE(pool.synchronize(long_enough));
  EXPECT_TRUE(told.empty()) << to_string(told[0].what);
  auto const f = pool.statistics();
  EXPECT_EQ(f.live + f.quarantined + f.allocated, 0u);
  EXPECT_EQ(f.failures, 0u);
}

TEST_F(hardening_on_device, host_accessible_memory_is_checked) {
  pool_resource pool{pinned_resource{device{0}}, {.hardened = {.enabled = true}}};
  stream on{device{0}};
  auto* const p = static_cast<char*>(pool.allocate(on, MiB));
  stamp::write(on.get(), p, MiB, 1, 100);
  pool.deallocate(on, p, MiB);
  ASSERT_TRUE(pool.synchronize(long_enough));
  EXPECT_TRUE(told.empty());
  auto* const q = static_cast<char*>(pool.allocate(on, 1000));
  q[1000] = 1;
  pool.deallocate(on, q, 1000);
  ASSERT_TRUE(pool.synchronize(long_enough));
  expect(misuse::kind::overrun, q, 1000, 1);
}
