// Locks, threads, thread indices and the clock of the shipped library, built on the standard library. The tests have
// another form of this partition, `scheduled/sync.cppm`: there a seed decides which thread runs next.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
export module gpumem:sync;
import :locks;
import :std;

export namespace gpumem::detail::sync {

/// The library's clock, its time points and durations, in nanoseconds.
using clock = std::chrono::steady_clock;
using time_point = std::chrono::time_point<clock, std::chrono::nanoseconds>;
using duration = std::chrono::nanoseconds;

inline time_point now() noexcept { return clock::now(); }
/// Whether now() is real time. In the form for tests it is not.
inline constexpr bool real_time = true;

/// A place at which the form for tests may switch threads. Does nothing here.
inline void schedule_point() noexcept {}

/// A plain mutex. Any thread.
using mutex = native_mutex;
using lock = scoped_lock<mutex>;

/// A condition variable. The thread that waits holds the mutex. A wait may end early, so callers check the condition
/// for which they wait.
class condition {
public:
  inline void wait(mutex& mutex) GPUMEM_REQUIRES(mutex) {
    wait_native(mutex, [this](auto& native) { native_.wait(native); });
  }
  inline void wait_until(mutex& mutex, time_point deadline) GPUMEM_REQUIRES(mutex) {
    wait_native(mutex, [this, deadline](auto& native) { native_.wait_until(native, deadline); });
  }
  inline void notify_one() noexcept { native_.notify_one(); }
  inline void notify_all() noexcept { native_.notify_all(); }

private:
  // Lends the native lock to std::condition_variable, which is smaller and faster than std::condition_variable_any.
  template <class Wait> void wait_native(mutex& mutex, Wait wait) {
    std::unique_lock<std::mutex> native{mutex.native_, std::adopt_lock};
    wait(native);
    native.release();
  }
  std::condition_variable native_;
};

/// A mutex for short scopes: one exchange locks it, one store unlocks it. A thread that finds it locked spins for 100
/// pauses and then yields its processor. Any thread.
class GPUMEM_CAPABILITY("mutex") spin_mutex {
public:
  spin_mutex() = default;
  /// `locked`: whether the calling thread holds the mutex from the beginning.
  explicit spin_mutex(bool locked) noexcept : taken_{locked} {}
  [[gnu::always_inline]] GPUMEM_ACQUIRES() inline void lock() noexcept {
    if (taken_.exchange(true, std::memory_order_acquire)) lock_taken();
  }
  GPUMEM_TRY_ACQUIRES(true) inline bool try_lock() noexcept {
    return !taken_.exchange(true, std::memory_order_acquire);
  }
  GPUMEM_RELEASES() inline void unlock() noexcept { taken_.store(false, std::memory_order_release); }
  GPUMEM_ASSERTS() inline void assert_held() const noexcept {}

private:
  // The slow path. With preserve_most this function saves the registers, so that the inlined fast path need not save
  // them. Hidden visibility avoids the linker's lazy-binding stub, which would not save them.
  [[clang::preserve_most, gnu::visibility("hidden")]] void lock_taken() noexcept GPUMEM_ACQUIRES();
  std::atomic<bool> taken_{false};
};

using spin_lock = scoped_lock<spin_mutex>;

/// A condition variable for spin mutexes and long waits. A wait can end early, so callers check their condition. A
/// thread that calls notify_all() holds at least one of the mutexes that the waiting thread unlocks.
class spin_condition {
public:
  /// `lock` has locked one or several mutexes. Unlocks them, waits, and locks them again. Locks `mutex_` before it
  /// unlocks them, so that no notification in between is lost.
  template <class Locks> void wait(Locks& lock) {
    {
      std::unique_lock inner{mutex_};
      lock.unlock();
      native_.wait(inner);
    }
    lock.lock();
  }
  void notify_all() noexcept;

private:
  std::mutex mutex_;
  std::condition_variable native_;
};

/// A mutex that belongs to one thread, its owner, which locks it by two plain accesses. To lock it, another thread
/// makes the kernel stop all threads of the process for some microseconds (membarrier), once for all mutexes that it
/// wants. Without an owner, or if the kernel cannot do that, an atomic exchange locks the mutex. The protocol: Dice,
/// Huang, Yang, "Asymmetric Dekker synchronization" (2001).
class GPUMEM_CAPABILITY("mutex") biased_mutex {
public:
  biased_mutex() = default;
  biased_mutex(biased_mutex const&) = delete;
  biased_mutex& operator=(biased_mutex const&) = delete;

  /// Gives the mutex an owner. Called before any thread locks it.
  void enable_bias() noexcept;
  /// Called by the owner; by any thread if there is no owner.
  [[gnu::always_inline]] GPUMEM_ACQUIRES() inline void lock() noexcept {
    if (!biased_) [[unlikely]]
      return others_.lock();
    taken_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (revoke_requested_.load(std::memory_order_acquire)) [[unlikely]]
      lock_requested();
  }
  [[gnu::always_inline]] GPUMEM_RELEASES() inline void unlock() noexcept {
    if (!biased_) [[unlikely]]
      return others_.unlock();
    taken_.store(false, std::memory_order_release);
  }

  /// For threads that are not the owner, one at a time. The thread calls request_revoke() for each mutex that it wants,
  /// then fence_owner_threads() once, then lock_revoked() for each.
  inline void request_revoke() noexcept { revoke_requested_.store(true, std::memory_order_relaxed); }
  static void fence_owner_threads() noexcept;
  GPUMEM_ACQUIRES() void lock_revoked() noexcept;
  GPUMEM_RELEASES() void unlock_revoked() noexcept;
  GPUMEM_ASSERTS() inline void assert_held() const noexcept {}

private:
  [[clang::preserve_most, gnu::visibility("hidden")]] void lock_requested() noexcept GPUMEM_ACQUIRES();
  bool biased_ = false;
  std::atomic<bool> taken_{false};
  std::atomic<bool> revoke_requested_{false};
  spin_mutex others_;
};

/// Holds a biased_mutex for a scope. Unlike scoped_lock, it cannot unlock early: it has only a reference to the mutex,
/// so that it costs less on the hottest paths.
class GPUMEM_SCOPED_LOCK biased_lock {
public:
  [[gnu::always_inline]] inline explicit biased_lock(biased_mutex& mutex) noexcept GPUMEM_ACQUIRES(mutex)
      : mutex_{mutex} {
    mutex_.lock();
  }
  biased_lock(biased_lock const&) = delete;
  biased_lock& operator=(biased_lock const&) = delete;
  [[gnu::always_inline]] GPUMEM_RELEASES() inline ~biased_lock() { mutex_.unlock(); }

private:
  biased_mutex& mutex_;
};

/// Each thread with an index below this has biased mutexes of its own.
inline constexpr unsigned max_biased_threads = 64;

/// A thread that has found locks taken this many times gets memory of its own, to keep threads apart.
inline constexpr unsigned contention_threshold = 32;

/// A thread of gpumem's own; must be joined before it is destroyed.
class thread {
public:
  thread() = default;
  explicit thread(std::function<void()> body) : native_{std::move(body)} {}
  inline bool joinable() const noexcept { return native_.joinable(); }
  void join() { native_.join(); }

private:
  std::thread native_;
};

/// The value of thread_index() in a thread that is ending and has given its index back. Destructors of the thread's
/// last thread_local objects see this value.
inline constexpr unsigned no_index = 1u << 31;

namespace detail {
inline constinit thread_local unsigned own_index = no_index + 1; // no index yet
unsigned take_index() noexcept;
} // namespace detail

/// Returns the calling thread's index: small, unique among live threads, and reused after the end of the thread.
inline unsigned thread_index() noexcept {
  auto const number = detail::own_index;
  return number <= no_index ? number : detail::take_index();
}

/// Registers a function that runs when the calling thread ends, before the destructors of thread_local objects that
/// were constructed earlier. If the destructor of a thread_local object registers the function, the function runs after
/// that destructor. Throws std::bad_alloc.
void at_thread_exit(void (*function)() noexcept);

/// Sleeps for about `span`.
inline void sleep_for(duration span) { std::this_thread::sleep_for(span); }

} // namespace gpumem::detail::sync

namespace gpumem {
namespace sync = detail::sync; // for the library alone
} // namespace gpumem
