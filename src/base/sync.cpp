// Locks that are found taken, and dense thread numbers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>
module gpumem:sync.impl;
import :sync;

namespace gpumem::sync {
namespace {

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Leaked on purpose: threads may end after static destruction has begun.
struct number_registry {
  std::mutex guard;
  std::priority_queue<unsigned, std::vector<unsigned>, std::greater<>> returned;
  unsigned next = 0;
};

number_registry& numbers() {
  static auto* const registry = new number_registry;
  return *registry;
}

struct number_holder {
  unsigned value;
  number_holder() {
    auto& registry = numbers();
    std::scoped_lock const held{registry.guard};
    if (registry.returned.empty()) {
      value = registry.next++;
    } else {
      value = registry.returned.top();
      registry.returned.pop();
    }
  }
  ~number_holder() {
    auto& registry = numbers();
    std::scoped_lock const held{registry.guard};
    registry.returned.push(value);
  }
};

} // namespace

void quick_mutex::lock_taken() noexcept {
  constexpr int most_spins = 100;
  for (int spins = 0;; ++spins) {
    // Looked at without writing: the line stays shared while somebody else has the lock.
    if (!taken_.load(std::memory_order_relaxed) && try_lock()) return;
    if (spins < most_spins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// Whoever notifies takes the inner lock, which a waiter holds from before it gives up the outer one.
void quick_condition::wait(quick_lock& held) {
  {
    std::unique_lock inner{guard_};
    held.unlock();
    native_.wait(inner);
  }
  held.lock();
}

void quick_condition::notify_all() noexcept {
  std::scoped_lock const inner{guard_};
  native_.notify_all();
}

unsigned thread_number() noexcept {
  thread_local number_holder const holder;
  return holder.value;
}

} // namespace gpumem::sync
