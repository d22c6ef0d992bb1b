// Mutexes with the attributes of clang's thread-safety analysis, for sources outside the module.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace gpumem::support {

class [[clang::capability("mutex")]] guarded_mutex {
public:
  [[clang::acquire_capability]] void lock() { native_.lock(); }
  [[clang::release_capability]] void unlock() { native_.unlock(); }

private:
  std::mutex native_;
};

/// A mutex for scopes of a few instructions, half as expensive as a guarded_mutex: one exchange locks it, one store
/// unlocks it. A thread that finds it locked tries 100 times and then yields its processor between attempts.
class [[clang::capability("mutex")]] guarded_spin_mutex {
public:
  [[clang::acquire_capability]] void lock() {
    for (int attempts = 0; taken_.exchange(true, std::memory_order_acquire); ++attempts) {
      if (attempts >= 100) std::this_thread::yield();
    }
  }
  [[clang::release_capability]] void unlock() { taken_.store(false, std::memory_order_release); }

private:
  std::atomic<bool> taken_{false};
};

/// Holds a mutex for a scope.
template <class Mutex> class [[clang::scoped_lockable]] scoped_lock_of {
public:
  explicit scoped_lock_of(Mutex& mutex) __attribute__((acquire_capability(mutex))) : mutex_{mutex} { mutex_.lock(); }
  scoped_lock_of(scoped_lock_of const&) = delete;
  scoped_lock_of& operator=(scoped_lock_of const&) = delete;
  [[clang::release_capability]] ~scoped_lock_of() { mutex_.unlock(); }

private:
  Mutex& mutex_;
};

using scoped_lock = scoped_lock_of<guarded_mutex>;
using scoped_spin_lock = scoped_lock_of<guarded_spin_mutex>;

/// Unlocks a held mutex for a scope.
class [[clang::scoped_lockable]] scoped_unlock {
public:
  explicit scoped_unlock(guarded_mutex& mutex) __attribute__((release_capability(mutex))) : mutex_{mutex} {
    mutex_.unlock();
  }
  scoped_unlock(scoped_unlock const&) = delete;
  scoped_unlock& operator=(scoped_unlock const&) = delete;
  [[clang::release_capability]] ~scoped_unlock() { mutex_.lock(); } // locks what the constructor has unlocked

private:
  guarded_mutex& mutex_;
};

} // namespace gpumem::support
