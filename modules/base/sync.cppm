// Locks, threads, thread index and the clock, as the shipped library has them: the standard library's.
// `scheduled/sync.cppm` is this partition's other form, in which a seed decides who runs next.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
export module gpumem:sync;
import :std;

export namespace gpumem::detail::sync {

/// A moment and a span of the library's clock, in nanoseconds.
using clock = std::chrono::steady_clock;
using time_point = std::chrono::time_point<clock, std::chrono::nanoseconds>;
using duration = std::chrono::nanoseconds;

inline time_point now() noexcept { return clock::now(); }

/// A place at which a schedule may switch threads; nothing in the shipped library.
inline void schedule_point() noexcept {}

/// A plain mutual exclusion. Any thread.
class mutex {
public:
  inline void lock() { native_.lock(); }
  inline bool try_lock() { return native_.try_lock(); }
  inline void unlock() { native_.unlock(); }

private:
  friend class condition;
  std::mutex native_;
};

/// A lock held for a scope.
using lock = std::unique_lock<mutex>;

/// A condition that threads wait for under a mutex; a wait may end early, so callers check what they wait for.
class condition {
public:
  inline void wait(lock& held) {
    wait_native(held, [this](auto& native) { native_.wait(native); });
  }
  inline void wait_until(lock& held, time_point deadline) {
    wait_native(held, [this, deadline](auto& native) { native_.wait_until(native, deadline); });
  }
  inline void notify_one() noexcept { native_.notify_one(); }
  inline void notify_all() noexcept { native_.notify_all(); }

private:
  // std::condition_variable, which is smaller and faster than the _any form, wants the native lock: lend it.
  template <class Wait> void wait_native(lock& held, Wait wait) {
    std::unique_lock<std::mutex> native{held.mutex()->native_, std::adopt_lock};
    wait(native);
    native.release();
  }
  std::condition_variable native_;
};

/// A mutual exclusion for short scopes: one exchange takes it, one store gives it back. Who finds it taken spins for a
/// while and then yields its processor. Any thread.
class spin_mutex {
public:
  [[gnu::always_inline]] inline void lock() noexcept {
    if (taken_.exchange(true, std::memory_order_acquire)) lock_taken();
  }
  inline bool try_lock() noexcept { return !taken_.exchange(true, std::memory_order_acquire); }
  inline void unlock() noexcept { taken_.store(false, std::memory_order_release); }

private:
  // What is rare saves its callers' registers itself, here and elsewhere: they save none for it. Hidden, since a
  // linker's stub that looks for it at the first call would not.
  [[clang::preserve_most, gnu::visibility("hidden")]] void lock_taken() noexcept;
  std::atomic<bool> taken_{false};
};

using spin_lock = std::unique_lock<spin_mutex>;

/// A condition that threads wait for under spin mutexes, for long; as `condition`. Whoever notifies holds one of
/// these.
class spin_condition {
public:
  /// The wait has begun before any of the locks is given up.
  template <class Locks> void wait(Locks& held) {
    {
      std::unique_lock inner{mutex_};
      held.unlock();
      native_.wait(inner);
    }
    held.lock();
  }
  void notify_all() noexcept;

private:
  std::mutex mutex_;
  std::condition_variable native_;
};

/// A mutual exclusion that belongs to one thread: its owner takes it by two plain accesses. Others make the kernel stop
/// all threads of the process for a moment (membarrier: some microseconds), once for all the locks they want. Without
/// an owner, or such a kernel, an exchange takes it. The protocol: Dice, Huang, Yang, "Asymmetric Dekker
/// synchronization" (2001).
class biased_mutex {
public:
  biased_mutex() = default;
  biased_mutex(biased_mutex const&) = delete;
  biased_mutex& operator=(biased_mutex const&) = delete;

  /// From now on it has an owner. Before anybody takes it.
  void enable_bias() noexcept;
  /// By the owner, or by any thread where there is none.
  [[gnu::always_inline]] inline void lock() noexcept {
    if (!biased_) [[unlikely]]
      return others_.lock();
    taken_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (revoke_requested_.load(std::memory_order_acquire)) [[unlikely]]
      lock_requested();
  }
  [[gnu::always_inline]] inline void unlock() noexcept {
    if (!biased_) [[unlikely]]
      return others_.unlock();
    taken_.store(false, std::memory_order_release);
  }

  /// By others, one thread at a time: says that it wants the lock; then, for all of them together, stops who takes
  /// them; then takes each.
  inline void request_revoke() noexcept { revoke_requested_.store(true, std::memory_order_relaxed); }
  static void fence_owner_threads() noexcept;
  void lock_revoked() noexcept;
  void unlock_revoked() noexcept;

private:
  [[clang::preserve_most, gnu::visibility("hidden")]] void lock_requested() noexcept;
  bool biased_ = false;
  std::atomic<bool> taken_{false};
  std::atomic<bool> revoke_requested_{false};
  spin_mutex others_;
};

/// It is held for a scope. As std::scoped_lock, which compilers leave out of line where it is wanted most.
class biased_lock {
public:
  [[gnu::always_inline]] inline explicit biased_lock(biased_mutex& held) noexcept : held_{held} { held_.lock(); }
  biased_lock(biased_lock const&) = delete;
  biased_lock& operator=(biased_lock const&) = delete;
  [[gnu::always_inline]] inline ~biased_lock() { held_.unlock(); }

private:
  biased_mutex& held_;
};

/// Threads of numbers below this own locks of theirs.
inline constexpr unsigned max_biased_threads = 64;

/// How often a thread meets others at a lock before it is worth memory to keep them apart.
inline constexpr unsigned contention_threshold = 32;

/// A thread of gpumem's own; join before destroying.
class thread {
public:
  thread() = default;
  explicit thread(std::function<void()> body) : native_{std::move(body)} {}
  inline bool joinable() const noexcept { return native_.joinable(); }
  void join() { native_.join(); }

private:
  std::thread native_;
};

/// Of a thread that is exiting and has given its number back, as the destructors of its last thread-local objects see
/// it.
inline constexpr unsigned no_index = 1u << 31;

namespace detail {
inline constinit thread_local unsigned own_index = no_index + 1; // none yet
unsigned take_index() noexcept;
} // namespace detail

/// The calling thread's dense number: small, unique among live threads, taken over by the next new thread after exit.
inline unsigned thread_index() noexcept {
  auto const number = detail::own_index;
  return number <= no_index ? number : detail::take_index();
}

/// Has the function called when the calling thread ends, before the destructors of thread_local objects that were
/// constructed earlier. Also from such a destructor: the call then follows it. Throws std::bad_alloc.
void at_thread_exit(void (*function)() noexcept);

/// Sleeps for about that long.
inline void sleep_for(duration span) { std::this_thread::sleep_for(span); }

} // namespace gpumem::detail::sync

namespace gpumem {
namespace sync = detail::sync; // for the library alone
} // namespace gpumem
