// An executor that runs work only when the test says so. Include it after `import gpumem;` and after <atomic> and
// <thread>: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// Queues posted work items, and runs them when the test asks for it.
class manual_executor final : public gpumem::executor {
public:
  void post(gpumem::extend::work_item& item) noexcept override {
    gpumem::detail::sync::lock const held{mutex_};
    queue_.push(item);
    ++posts_;
  }
  bool try_cancel(gpumem::extend::work_item& item) noexcept override {
    gpumem::detail::sync::lock const held{mutex_};
    return queue_.remove(item);
  }
  bool posted() const { return posts_ > 0; }
  std::size_t posts() const { return posts_; }
  void wait_for_post() const {
    while (!posted()) std::this_thread::yield();
  }
  bool run_one() {
    gpumem::extend::work_item* item = nullptr;
    {
      gpumem::detail::sync::lock const held{mutex_};
      item = queue_.pop();
    }
    if (item) item->resume();
    return item != nullptr;
  }

private:
  gpumem::detail::sync::mutex mutex_;
  gpumem::extend::work_queue queue_;
  std::atomic<std::size_t> posts_{0};
};

} // namespace test
