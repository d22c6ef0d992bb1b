// Behaviour that all executors with threads share.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/work_item.hpp"

namespace {

using test::item;

struct one_thread {
  gpumem::thread_executor executor;
};

struct two_threads {
  gpumem::thread_pool_executor executor{2};
};

// A user's thread, which ends when its jobs are done.
class job_thread {
public:
  ~job_thread() {
    {
      std::scoped_lock const held{mutex_};
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void post(gpumem::extend::executor_job job) {
    {
      std::scoped_lock const held{mutex_};
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

private:
  void run() {
    std::unique_lock held{mutex_};
    for (;;) {
      changed_.wait(held, [&] { return over_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      held.unlock();
      job();
      held.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<gpumem::extend::executor_job> jobs_;
  bool over_ = false;
  std::thread thread_{[this] { run(); }};
};

struct other_jobs {
  struct post_job {
    job_thread* to;
    void operator()(gpumem::extend::executor_job job) const { to->post(std::move(job)); }
  };
  job_thread jobs; // may end after the executor: jobs that run then do nothing
  gpumem::executor_adaptor<post_job> executor{post_job{&jobs}};
};

template <class Kind> class executors : public testing::Test {};
using kinds = testing::Types<one_thread, two_threads, other_jobs>;
TYPED_TEST_SUITE(executors, kinds);

TYPED_TEST(executors, many_threads_can_post_and_cancel) {
  constexpr std::size_t threads = 4, each = 1'000;
  std::atomic<std::size_t> over{0};
  std::vector<std::unique_ptr<item>> items;
  items.reserve(threads * each);
  for (std::size_t i = 0; i < threads * each; ++i) items.push_back(std::make_unique<item>([&] { ++over; }));
  TypeParam kind;
  std::vector<std::thread> posting;
  posting.reserve(threads);
  for (std::size_t t = 0; t < threads; ++t) {
    posting.emplace_back([&, t] {
      for (std::size_t i = 0; i < each; ++i) {
        auto& mine = *items[t * each + i];
        kind.executor.post(mine);
        if (i % 3 == 0 && kind.executor.try_cancel(mine)) ++over;
      }
    });
  }
  for (auto& thread : posting) thread.join();
  while (over < threads * each) std::this_thread::yield(); // each item has run or was cancelled
  for (auto& one : items) EXPECT_FALSE(kind.executor.try_cancel(*one));
  EXPECT_EQ(over, threads * each);
}

} // namespace
