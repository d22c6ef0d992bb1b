// Keeps the library thread busy in a test. Include it after `import gpumem;` and after <atomic> and <thread>: it
// includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// While an object lives, the library thread runs no timer and makes no pass.
class busy_library_thread final : gpumem::extend::work_item {
public:
  busy_library_thread() {
    gpumem::default_executor().post(*this);
    while (!busy_) std::this_thread::yield();
  }
  ~busy_library_thread() {
    ended_ = true;
    while (busy_) std::this_thread::yield();
  }
  busy_library_thread(busy_library_thread const&) = delete;
  busy_library_thread& operator=(busy_library_thread const&) = delete;

private:
  void resume() noexcept override {
    busy_ = true;
    while (!ended_) std::this_thread::yield();
    busy_ = false;
  }

  std::atomic<bool> busy_{false}, ended_{false};
};

} // namespace test
