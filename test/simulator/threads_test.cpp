// Free-running host threads on the simulated device, and threads that a test schedules itself.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

class threads : public simulated_device {
protected:
  threads() : simulated_device(patient()) {}
  static simulator::options patient() {
    simulator::options how;
    how.stall_timeout = 30s;
    return how;
  }
};

TEST_F(threads, threads_use_the_device_concurrently) {
  constexpr int count = 4;
  constexpr int rounds = 200;
  std::atomic<int> ran{0};
  std::vector<std::thread> all;
  for (int t = 0; t < count; ++t)
    all.emplace_back([&] {
      cu().set_current(context_);
      char* memory = new_memory(4096);
      CUstream const a = new_stream();
      CUstream const b = new_stream();
      CUevent const e = new_event();
      for (int i = 0; i < rounds; ++i) {
        simulator::work(a, {simulator::write(memory, 4096)}, 1us, [&] { ran.fetch_add(1); });
        cu().event_record(e, a);
        cu().stream_wait(b, e, 0);
        simulator::work(b, {simulator::write(memory, 4096)}, 1us, [&] { ran.fetch_add(1); });
        cu().event_record(e, b);
        cu().stream_wait(a, e, 0);
        if (i % 16 == 0) EXPECT_EQ(cu().event_synchronize(e), CUDA_SUCCESS);
      }
      EXPECT_EQ(cu().stream_synchronize(a), CUDA_SUCCESS);
      EXPECT_EQ(cu().free(address(memory)), CUDA_SUCCESS);
    });
  for (auto& thread : all) thread.join();
  EXPECT_EQ(ran.load(), 2 * count * rounds);
}

TEST_F(threads, run_until_idle_waits_for_steps_of_another_thread) {
  simulator::reset(stepped_by_hand());
  CUstream const a = new_stream();
  std::atomic<bool> begun{false};
  std::atomic<int> ran{0};
  simulator::work(a, {}, 1us, [&] {
    begun = true;
    std::this_thread::sleep_for(20ms);
    ++ran;
  });
  simulator::work(a, {}, 1us, [&] { ++ran; });
  std::thread other([] { simulator::step(1); });
  while (!begun) std::this_thread::yield();
  EXPECT_EQ(simulator::run_until_idle(), 0u);
  EXPECT_EQ(ran.load(), 2);
  other.join();
}

TEST_F(threads, thread_waits_for_work_that_another_enqueues_later) {
  char* flag = new_memory(4);
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  cu().wait_value(a, address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ);
  std::atomic<bool> waits{false};
  std::thread waiter([&] {
    waits = true;
    EXPECT_EQ(cu().stream_synchronize(a), CUDA_SUCCESS);
  });
  while (!waits) std::this_thread::yield();
  cu().write_value(b, address(flag), 1, 0);
  cu().stream_synchronize(b);
  waiter.join();
}

/// Lets one thread run at a time, in the order of their numbers; a thread that ends or blocks lets the next run.
class baton {
public:
  explicit baton(int threads) : left_(threads), waits_(static_cast<std::size_t>(threads), false) {}

  void take(int self) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == self; });
    mine_ = self;
  }
  void done() {
    std::lock_guard const lock(mutex_);
    waits_[static_cast<std::size_t>(mine_)] = true;
    --left_;
    pass();
  }
  /// For on_block: lets another thread run; returns false if all others have ended.
  bool yield() {
    std::unique_lock lock(mutex_);
    if (left_ == 1) return false;
    int const self = mine_;
    pass();
    changed_.wait(lock, [&] { return turn_ == self; });
    return true;
  }
  int marks = 0;

private:
  void pass() {
    if (left_ == 0) return;
    int const count = static_cast<int>(waits_.size());
    do { turn_ = (turn_ + 1) % count; } while (waits_[static_cast<std::size_t>(turn_)]);
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = 0;
  int left_;
  std::vector<bool> waits_;
  static thread_local int mine_;
};
thread_local int baton::mine_ = -1;

class scheduled : public simulated_device {
protected:
  void install(baton& shared) {
    simulator::set_schedule_hooks([](void* context) { ++static_cast<baton*>(context)->marks; },
                                  [](void* context) { return static_cast<baton*>(context)->yield(); }, &shared);
  }
  void TearDown() override {
    simulator::set_schedule_hooks(nullptr, nullptr, nullptr);
    simulated_device::TearDown();
  }
};

TEST_F(scheduled, blocked_call_lets_other_threads_run) {
  char* flag = new_memory(4);
  CUstream const a = new_stream();
  CUstream const b = new_stream();
  cu().wait_value(a, address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ);
  baton shared(2);
  install(shared);
  std::thread waiter([&] {
    shared.take(0);
    EXPECT_EQ(cu().stream_synchronize(a), CUDA_SUCCESS);
    shared.done();
  });
  std::thread writer([&] {
    shared.take(1);
    EXPECT_EQ(cu().write_value(b, address(flag), 1, 0), CUDA_SUCCESS);
    shared.done();
  });
  waiter.join();
  writer.join();
  EXPECT_EQ(shared.marks, 2);
}

TEST_F(scheduled, blocked_call_that_no_thread_can_end_is_a_deadlock) {
  char* flag = new_memory(4);
  CUstream const a = new_stream();
  cu().wait_value(a, address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ);
  baton shared(2);
  install(shared);
  std::thread waiter([&] {
    shared.take(0);
    EXPECT_EQ(cu().stream_synchronize(a), CUDA_ERROR_TIMEOUT);
    shared.done();
  });
  std::thread other([&] {
    shared.take(1);
    shared.done();
  });
  waiter.join();
  other.join();
  EXPECT_EQ(only_finding().kind, simulator::finding_kind::deadlock);
  *reinterpret_cast<std::uint32_t*>(flag) = 1;
}

} // namespace
