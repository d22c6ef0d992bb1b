// Mutexes with the attributes of clang's thread-safety analysis, for sources outside the module.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include <atomic>
#include <mutex>
#include <thread>

namespace gpumem::support {

class GPUMEM_CAPABILITY("mutex") guarded_mutex {
public:
  GPUMEM_ACQUIRES() void lock() { native_.lock(); }
  GPUMEM_RELEASES() void unlock() { native_.unlock(); }

private:
  std::mutex native_;
};

/// A mutex for scopes of a few instructions, half as expensive as a guarded_mutex: one exchange locks it, one store
/// unlocks it. A thread that finds it locked tries 100 times and then yields its processor between attempts.
class GPUMEM_CAPABILITY("mutex") guarded_spin_mutex {
public:
  GPUMEM_ACQUIRES() void lock() {
    for (int attempts = 0; taken_.exchange(true, std::memory_order_acquire); ++attempts) {
      if (attempts >= 100) std::this_thread::yield();
    }
  }
  GPUMEM_RELEASES() void unlock() { taken_.store(false, std::memory_order_release); }

private:
  std::atomic<bool> taken_{false};
};

/// Holds a mutex for a scope.
template <class Mutex> class GPUMEM_SCOPED_LOCK scoped_lock_of {
public:
  explicit scoped_lock_of(Mutex& mutex) GPUMEM_ACQUIRES(mutex) : mutex_{mutex} { mutex_.lock(); }
  scoped_lock_of(scoped_lock_of const&) = delete;
  scoped_lock_of& operator=(scoped_lock_of const&) = delete;
  GPUMEM_RELEASES() ~scoped_lock_of() { mutex_.unlock(); }

private:
  Mutex& mutex_;
};

using scoped_lock = scoped_lock_of<guarded_mutex>;
using scoped_spin_lock = scoped_lock_of<guarded_spin_mutex>;

/// Unlocks a held mutex for a scope.
class GPUMEM_SCOPED_LOCK scoped_unlock {
public:
  explicit scoped_unlock(guarded_mutex& mutex) GPUMEM_RELEASES(mutex) : mutex_{mutex} { mutex_.unlock(); }
  scoped_unlock(scoped_unlock const&) = delete;
  scoped_unlock& operator=(scoped_unlock const&) = delete;
  GPUMEM_RELEASES() ~scoped_unlock() { mutex_.lock(); } // locks what the constructor has unlocked

private:
  guarded_mutex& mutex_;
};

} // namespace gpumem::support
