// The system's mutex, scoped locks and roles, for both forms of `:sync`: the shipped one and that for schedule tests.
// Their attributes let clang's thread-safety analysis check the library when it is compiled.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <mutex>
export module gpumem:locks;
import :std;

export namespace gpumem::detail::sync {

/// std::mutex with the attributes of clang's analysis. Shipped builds use it as sync::mutex; schedule tests have
/// another one.
class GPUMEM_CAPABILITY("mutex") native_mutex {
public:
  GPUMEM_ACQUIRES() inline void lock() { native_.lock(); }
  GPUMEM_TRY_ACQUIRES(true) inline bool try_lock() { return native_.try_lock(); }
  GPUMEM_RELEASES() inline void unlock() { native_.unlock(); }
  /// Tells the analysis that the calling thread holds the mutex. Lambdas need this, because the analysis checks a
  /// lambda without its caller.
  GPUMEM_ASSERTS() inline void assert_held() const noexcept {}

private:
  friend class condition;
  std::mutex native_;
};

/// Holds a mutex for a scope, in which it may be unlocked and locked again. With `std::adopt_lock` the mutex is locked
/// already, for example after a try_lock() that succeeded.
template <class Mutex> class GPUMEM_SCOPED_LOCK scoped_lock {
public:
  inline explicit scoped_lock(Mutex& mutex) GPUMEM_ACQUIRES(mutex) : mutex_{&mutex} { lock(); }
  inline scoped_lock(Mutex& mutex, std::adopt_lock_t) noexcept GPUMEM_REQUIRES(mutex) : mutex_{&mutex}, holds_{true} {}
  scoped_lock(scoped_lock const&) = delete;
  scoped_lock& operator=(scoped_lock const&) = delete;
  GPUMEM_RELEASES() inline ~scoped_lock() {
    if (holds_) mutex_->unlock();
  }

  GPUMEM_ACQUIRES() inline void lock() {
    mutex_->lock();
    holds_ = true;
  }
  GPUMEM_RELEASES() inline void unlock() {
    mutex_->unlock();
    holds_ = false;
  }

private:
  friend class condition;
  Mutex* mutex_ = nullptr;
  bool holds_ = false;
};

/// Unlocks a held mutex for a scope and locks it again at the end. For functions that are called with the mutex held.
template <class Mutex> class GPUMEM_SCOPED_LOCK scoped_unlock {
public:
  inline explicit scoped_unlock(Mutex& mutex) GPUMEM_RELEASES(mutex) : mutex_{mutex} { mutex_.unlock(); }
  scoped_unlock(scoped_unlock const&) = delete;
  scoped_unlock& operator=(scoped_unlock const&) = delete;
  GPUMEM_RELEASES() inline ~scoped_unlock() { mutex_.lock(); }

private:
  Mutex& mutex_;
};

/// A capability for the analysis only, without state. A role stands for a group of locks. An object that holds one lock
/// of the group acquires the role shared; an object that holds all of them acquires it exclusively. The role guards
/// members that are written under all the locks and read under any of them.
class GPUMEM_CAPABILITY("role") role {};

} // namespace gpumem::detail::sync
