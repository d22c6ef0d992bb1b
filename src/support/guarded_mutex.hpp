// A mutex with the attributes of clang's thread-safety analysis, for units outside the module.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>

namespace gpumem::support {

class [[clang::capability("mutex")]] guarded_mutex {
public:
  [[clang::acquire_capability]] void lock() { native_.lock(); }
  [[clang::release_capability]] void unlock() { native_.unlock(); }

private:
  std::mutex native_;
};

/// Holds a mutex for a scope.
class [[clang::scoped_lockable]] scoped_lock {
public:
  explicit scoped_lock(guarded_mutex& of) __attribute__((acquire_capability(of))) : mutex_{of} { mutex_.lock(); }
  scoped_lock(scoped_lock const&) = delete;
  scoped_lock& operator=(scoped_lock const&) = delete;
  [[clang::release_capability]] ~scoped_lock() { mutex_.unlock(); }

private:
  guarded_mutex& mutex_;
};

/// Unlocks a held mutex for a scope.
class [[clang::scoped_lockable]] scoped_unlock {
public:
  explicit scoped_unlock(guarded_mutex& held) __attribute__((release_capability(held))) : mutex_{held} {
    mutex_.unlock();
  }
  scoped_unlock(scoped_unlock const&) = delete;
  scoped_unlock& operator=(scoped_unlock const&) = delete;
  [[clang::release_capability]] ~scoped_unlock() { mutex_.lock(); } // locks what the constructor has released

private:
  guarded_mutex& mutex_;
};

} // namespace gpumem::support
