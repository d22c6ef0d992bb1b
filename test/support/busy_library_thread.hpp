// Keeps the library thread busy in a test. Include it after `import gpumem;` and after <atomic>, <functional> and
// <thread>: it includes nothing of the standard library itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "work_item.hpp"

namespace test {

/// While an object lives, the library thread runs no timer and makes no pass.
class busy_library_thread {
public:
  busy_library_thread() {
    gpumem::default_executor().post(item_);
    while (!busy_) std::this_thread::yield();
  }
  ~busy_library_thread() {
    ended_ = true;
    while (busy_) std::this_thread::yield();
  }
  busy_library_thread(busy_library_thread const&) = delete;
  busy_library_thread& operator=(busy_library_thread const&) = delete;

private:
  std::atomic<bool> busy_{false}, ended_{false};
  item item_{[this] {
    busy_ = true;
    while (!ended_) std::this_thread::yield();
    busy_ = false;
  }};
};

} // namespace test
