// An adaptor that is made of public names only: it keeps waiting, trim, statistics and the queries of its upstream.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

import gpumem;

namespace {

using namespace gpumem::literals;
using gpumem::outcome;
namespace extend = gpumem::extend;

template <class Upstream> class own_state final : public extend::adaptor_state<own_state<Upstream>, Upstream> {
public:
  explicit own_state(Upstream upstream) : extend::adaptor_state<own_state, Upstream>{std::move(upstream)} {}
  void on_granted(extend::stream_key const&, void*, std::size_t) noexcept { ++granted; }
  void on_free(extend::stream_key const&, void*, std::size_t) noexcept { ++freed; }
  std::atomic<int> granted{0}, freed{0};
};

template <class Upstream>
class own_adaptor : public extend::adaptor_base<own_adaptor<Upstream>, own_state<Upstream>, Upstream> {
  using base = extend::adaptor_base<own_adaptor, own_state<Upstream>, Upstream>;

public:
  explicit own_adaptor(Upstream upstream) : base{new own_state<Upstream>{std::move(upstream)}} {}
  int granted() const { return this->shared().granted; }
  int freed() const { return this->shared().freed; }
};

class own_adaptor_test : public simulated {
protected:
  static auto soon() { return std::chrono::steady_clock::now() + std::chrono::milliseconds{2}; }
  static auto late() { return std::chrono::steady_clock::now() + std::chrono::seconds{10}; }
  template <class Subject> void expect_waiting(Subject subject) {
    auto held = subject.acquire(a, 48_MiB).wait();
    EXPECT_EQ(subject.acquire(b, 32_MiB).wait_until(soon()).error().reason, outcome::deadline);
    EXPECT_EQ(subject.acquire_all({{a, 32_MiB}, {b, 16_MiB}}).wait_until(soon()).error().reason, outcome::deadline);
    EXPECT_EQ(subject.acquire(b, 65_MiB).wait_until(late()).error().reason, outcome::too_large);
    EXPECT_EQ(subject.granted(), 1);
    std::thread waits{[&] { EXPECT_EQ(subject.acquire(b, 32_MiB).wait().bytes(), 32_MiB); }};
    while (gpumem::statistics_of(subject)->waiting == 0) std::this_thread::yield();
    held.reset();
    waits.join();
    EXPECT_EQ(subject.granted(), 2);
    EXPECT_EQ(subject.freed(), 2);
  }

  gpumem::stream a{gpumem::device{0}}, b{gpumem::device{0}};
  gpumem::pool_resource<gpumem::cuda_resource> pool{gpumem::device{0}, {.limit = 64_MiB}};
};

TEST_F(own_adaptor_test, requests_wait_at_the_upstream) {
  expect_waiting(own_adaptor{pool});
  expect_waiting(own_adaptor{gpumem::any_pool{pool}});
  expect_waiting(own_adaptor{gpumem::statistics_adaptor{own_adaptor{pool}}});
  expect_waiting(own_adaptor{gpumem::limiting_adaptor{pool, {.limit = 64_MiB}}});
}

TEST_F(own_adaptor_test, trim_statistics_and_queries_are_forwarded) {
  own_adaptor subject{pool};
  auto block = subject.acquire(a, 8_MiB).wait();
  EXPECT_EQ(subject.statistics().live, 8_MiB);
  EXPECT_EQ(subject.find(block.data())->bytes, 8_MiB);
  block.reset();
  gpumem::simulator::run_until_idle();
  EXPECT_GE(subject.trim(0), 8_MiB);
  EXPECT_EQ(subject.statistics().reserved, 0u);
  auto* const unsized = subject.allocate(a, 1_MiB);
  subject.deallocate(a, unsized);
  EXPECT_EQ(subject.freed(), 2);
}

TEST_F(own_adaptor_test, upstream_without_waiting_is_served) {
  own_adaptor subject{gpumem::cuda_resource{gpumem::device{0}}};
  EXPECT_EQ(subject.acquire(a, 1_MiB).wait().bytes(), 1_MiB);
  EXPECT_EQ(subject.acquire(a, 1000_GiB).wait_until(soon()).error().reason, outcome::exhausted);
}

} // namespace
