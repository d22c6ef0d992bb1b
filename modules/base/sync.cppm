// Locks, threads, thread numbers and the clock, as the shipped library has them: the standard library's.
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

export namespace gpumem::sync {

/// A moment and a span of the library's clock, in nanoseconds.
using clock = std::chrono::steady_clock;
using time_point = std::chrono::time_point<clock, std::chrono::nanoseconds>;
using duration = std::chrono::nanoseconds;

inline time_point now() noexcept { return clock::now(); }

/// A place at which a schedule may switch threads; nothing in the shipped library.
inline void mark() noexcept {}

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
class quick_mutex {
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

using quick_lock = std::unique_lock<quick_mutex>;

/// A condition that threads wait for under quick mutexes, for long; as `condition`. Whoever notifies holds one of
/// these.
class quick_condition {
public:
  /// The wait has begun before any of the locks is given up.
  template <class Locks> void wait(Locks& held) {
    {
      std::unique_lock inner{guard_};
      held.unlock();
      native_.wait(inner);
    }
    held.lock();
  }
  void notify_all() noexcept;

private:
  std::mutex guard_;
  std::condition_variable native_;
};

/// A mutual exclusion that belongs to one thread: its owner takes it by two plain accesses. Others make the kernel stop
/// all threads of the process for a moment (membarrier: some microseconds), once for all the locks they want. Without
/// an owner, or such a kernel, an exchange takes it. The protocol: Dice, Huang, Yang, "Asymmetric Dekker
/// synchronization" (2001).
class owned_mutex {
public:
  owned_mutex() = default;
  owned_mutex(owned_mutex const&) = delete;
  owned_mutex& operator=(owned_mutex const&) = delete;

  /// From now on it has an owner. Before anybody takes it.
  void give_owner() noexcept;
  /// By the owner, or by any thread where there is none.
  [[gnu::always_inline]] inline void lock() noexcept {
    if (!biased_) [[unlikely]]
      return others_.lock();
    taken_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (wanted_.load(std::memory_order_acquire)) [[unlikely]]
      lock_wanted();
  }
  [[gnu::always_inline]] inline void unlock() noexcept {
    if (!biased_) [[unlikely]]
      return others_.unlock();
    taken_.store(false, std::memory_order_release);
  }

  /// By others, one thread at a time: says that it wants the lock; then, for all of them together, stops who takes
  /// them; then takes each.
  inline void want() noexcept { wanted_.store(true, std::memory_order_relaxed); }
  static void stop_owners() noexcept;
  void lock_from_owner() noexcept;
  void unlock_to_owner() noexcept;

private:
  [[clang::preserve_most, gnu::visibility("hidden")]] void lock_wanted() noexcept;
  bool biased_ = false;
  std::atomic<bool> taken_{false};
  std::atomic<bool> wanted_{false};
  quick_mutex others_;
};

/// It is held for a scope. As std::scoped_lock, which compilers leave out of line where it is wanted most.
class owned_lock {
public:
  [[gnu::always_inline]] inline explicit owned_lock(owned_mutex& held) noexcept : held_{held} { held_.lock(); }
  owned_lock(owned_lock const&) = delete;
  owned_lock& operator=(owned_lock const&) = delete;
  [[gnu::always_inline]] inline ~owned_lock() { held_.unlock(); }

private:
  owned_mutex& held_;
};

/// Threads of numbers below this own locks of theirs.
inline constexpr unsigned most_owners = 64;

/// How often a thread meets others at a lock before it is worth memory to keep them apart.
inline constexpr unsigned patience = 32;

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
inline constexpr unsigned no_number = 1u << 31;

namespace detail {
inline constinit thread_local unsigned own_number = no_number + 1; // none yet
unsigned take_number() noexcept;
} // namespace detail

/// The calling thread's dense number: small, unique among live threads, taken over by the next new thread after exit.
inline unsigned thread_number() noexcept {
  auto const number = detail::own_number;
  return number <= no_number ? number : detail::take_number();
}

/// Has the function called when the calling thread ends, before the destructors of thread_local objects that were
/// constructed earlier. Also from such a destructor: the call then follows it. Throws std::bad_alloc.
void at_thread_exit(void (*function)() noexcept);

/// Sleeps for about that long.
inline void sleep_for(duration span) { std::this_thread::sleep_for(span); }

} // namespace gpumem::sync
