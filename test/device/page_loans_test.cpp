// Loans of pages on a real device: borrowers and the pool's own requests share a limit, so that pages go back and forth
// between them, and kernels find what they wrote.
// SPDX-License-Identifier: Apache-2.0
#include "churn.hpp"
#include "device_test.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

using namespace gpumem;
using gpumem_test::churn;
using gpumem_test::make_streams;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class page_loans_on_device : public device_test {
protected:
  static constexpr std::size_t limit = 512 * mib;
  struct loan {
    std::byte* base;
    std::size_t bytes;
    std::uint64_t value;
  };

  // Borrows and returns pages at random offsets. Each loan is checked just before its free, after which its pages may
  // leave. Returns the number of loans.
  int borrow(pool_resource<cuda_resource> pool, stream& on, std::uint64_t seed, std::size_t page) {
    detail::page_lender lender{pool, 1024 * mib, page};
    std::mt19937_64 random{seed};
    std::vector<loan> loans;
    int granted = 0;
    for (std::uint64_t i = 1; i <= 600; ++i) {
      if (loans.size() < 6 && random() % 2 == 0) {
        auto const bytes = (1 + random() % 16) * 2 * mib, offset = random() % 480 * 2 * mib;
        auto const got = random() % 4 ? lender.try_allocate_at(on, offset, bytes) : lender.try_allocate(on, bytes);
        if (!got) continue;
        ++granted;
        loans.push_back({static_cast<std::byte*>(*got), bytes, seed * 1000 + i});
        stamp::write(on.get(), *got, bytes, loans.back().value);
      } else if (!loans.empty()) {
        std::swap(loans[random() % loans.size()], loans.back());
        give_back(lender, on, loans.back());
        loans.pop_back();
      }
    }
    for (auto const& one : loans) give_back(lender, on, one);
    return granted;
  }

private:
  void give_back(detail::page_lender& lender, stream& on, loan const& one) {
    stamp::check(on.get(), one.base, one.bytes, one.value, wrong_);
    lender.deallocate(on, one.base, one.bytes);
  }
};

TEST_F(page_loans_on_device, borrowers_and_the_pool_share_pages) {
  pool_resource pool{device{0}, {.limit = limit}};
  auto streams = make_streams(4);
  std::vector<std::thread> threads;
  std::vector<int> granted(2);
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      device_guard const here{device{0}};
      granted[i] = borrow(pool, streams[i], 1 + i, i * 32 * mib);
    });
    threads.emplace_back([&, i] {
      churn one{pool, streams, wrong_, 300 + i, 100};
      for (int step = 0; step < 2'000; ++step) one.step();
      one.run(0);
    });
  }
  for (auto& each : threads) each.join();
  auto const seen = pool.statistics();
  std::printf("%d and %d loans, %llu allocations; peak %zu MiB reserved\n", granted[0], granted[1],
              static_cast<unsigned long long>(seen.allocations), seen.peak_reserved / mib);
  EXPECT_GT(granted[0] + granted[1], 100);
  EXPECT_EQ(seen.lent, 0u);
  EXPECT_EQ(seen.live, 0u);
  EXPECT_LE(seen.peak_reserved, limit);
}

TEST_F(page_loans_on_device, large_pages_are_lent_beside_a_running_kernel) {
  pool_resource pool{device{0}};
  stream on{device{0}};
  detail::page_lender lender{pool, std::size_t{8} << 30, 512 * mib};
  auto* const first = lender.allocate(on, 512 * mib);
  stamp::write(on.get(), first, 512 * mib, 7, 20'000);
  auto* const second = lender.allocate(on, 1024 * mib);
  EXPECT_EQ(cudaStreamQuery(on.get()), cudaErrorNotReady) << "the loan waited for the kernel";
  stamp::write(on.get(), second, 1024 * mib, 8);
  stamp::check(on.get(), first, 512 * mib, 7, wrong_);
  stamp::check(on.get(), second, 1024 * mib, 8, wrong_);
  lender.deallocate(on, first, 512 * mib);
  lender.deallocate(on, second, 1024 * mib);
  on.synchronize();
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved, 0u);
}

} // namespace
