// The common part of both forms of `:sync`: the system's mutex, scoped locks and roles, with the attributes of clang's
// thread-safety analysis, which checks the library as it is compiled.
// SPDX-License-Identifier: Apache-2.0
module;
#include <mutex>
export module gpumem:locks;
import :std;

export namespace gpumem::detail::sync {

/// The system's mutex. Also for threads outside the schedule of the scheduled form.
class [[clang::capability("mutex")]] native_mutex {
public:
  [[clang::acquire_capability]] inline void lock() { native_.lock(); }
  [[clang::try_acquire_capability(true)]] inline bool try_lock() { return native_.try_lock(); }
  [[clang::release_capability]] inline void unlock() { native_.unlock(); }
  /// Tells the analysis that the calling thread holds the mutex: for lambdas, which it checks without their callers.
  [[clang::assert_capability]] inline void assert_held() const noexcept {}

private:
  friend class condition;
  std::mutex native_;
};

/// Holds a mutex for a scope, in which it may be unlocked and locked again. After a try_lock() that succeeded, the
/// scope takes over the mutex by `std::adopt_lock`.
template <class Mutex> class [[clang::scoped_lockable]] scoped_lock {
public:
  inline explicit scoped_lock(Mutex& of) __attribute__((acquire_capability(of))) : mutex_{&of} { lock(); }
  inline scoped_lock(Mutex& of, std::adopt_lock_t) noexcept __attribute__((requires_capability(of)))
      : mutex_{&of}, holds_{true} {}
  scoped_lock(scoped_lock const&) = delete;
  scoped_lock& operator=(scoped_lock const&) = delete;
  [[clang::release_capability]] inline ~scoped_lock() {
    if (holds_) mutex_->unlock();
  }

  [[clang::acquire_capability]] inline void lock() {
    mutex_->lock();
    holds_ = true;
  }
  [[clang::release_capability]] inline void unlock() {
    mutex_->unlock();
    holds_ = false;
  }

private:
  friend class condition;
  Mutex* mutex_ = nullptr;
  bool holds_ = false;
};

/// Unlocks a held mutex for a scope, and locks it again at its end: for functions that are called with the mutex held.
template <class Mutex> class [[clang::scoped_lockable]] scoped_unlock {
public:
  inline explicit scoped_unlock(Mutex& held) __attribute__((release_capability(held))) : mutex_{held} {
    mutex_.unlock();
  }
  scoped_unlock(scoped_unlock const&) = delete;
  scoped_unlock& operator=(scoped_unlock const&) = delete;
  [[clang::release_capability]] inline ~scoped_unlock() { mutex_.lock(); }

private:
  Mutex& mutex_;
};

/// Stands in the analysis for "one of several locks" (shared) or "all of them" (exclusive). The guards of those locks
/// acquire it; it has no state. Members that are written under all the locks and read under any are guarded by it.
class [[clang::capability("role")]] role {};

} // namespace gpumem::detail::sync
