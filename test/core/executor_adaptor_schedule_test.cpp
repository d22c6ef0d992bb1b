// An executor and its job system are destroyed while a posting thread may still be inside post().
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

import gpumem;
#include "../support/work_item.hpp"

namespace {

// A job system that counts the threads inside its post().
class job_system {
public:
  void post(gpumem::extend::executor_job job) {
    ++inside_;
    gpumem::detail::sync::schedule_point();
    {
      gpumem::detail::sync::lock const held{mutex_};
      jobs_.push_back(std::move(job));
    }
    gpumem::detail::sync::schedule_point();
    --inside_;
  }
  void run_one() {
    gpumem::detail::sync::lock held{mutex_};
    if (jobs_.empty()) return;
    auto const job = std::move(jobs_.front());
    jobs_.pop_front();
    held.unlock();
    job();
  }
  std::size_t inside() const noexcept { return inside_; }

private:
  gpumem::detail::sync::mutex mutex_;
  std::deque<gpumem::extend::executor_job> jobs_;
  std::size_t inside_ = 0;
};

TEST(executor_adaptor_schedule, destruction_waits_until_no_thread_is_in_the_function) {
  std::size_t met = 0;
  test::schedule_seeds const seeds{2'000};
  seeds.each([&](std::uint64_t seed) {
    job_system jobs;
    auto post = [&](gpumem::extend::executor_job job) noexcept { jobs.post(std::move(job)); };
    std::optional<gpumem::executor_adaptor<decltype(post)>> executor{std::in_place, post};
    int resumed = 0;
    std::size_t left_inside = 0;
    test::item one{[&] { ++resumed; }}, two{[&] { ++resumed; }};
    auto poster = [where = &*executor](gpumem::extend::work_item& item) {
      return [where, &item] { where->post(item); };
    };
    auto owner = [&] {
      while (resumed < 2) {
        jobs.run_one();
        gpumem::detail::sync::schedule_point();
      }
      if (jobs.inside() > 0) ++met;
      executor.reset();
      left_inside = jobs.inside();
    };
    gpumem::detail::schedule::run(seed, {poster(one), poster(two), owner});
    ASSERT_EQ(left_inside, 0u) << "GPUMEM_SEED=" << seed;
  });
  if (!seeds.alone()) EXPECT_GT(met, 0u);
}

} // namespace
