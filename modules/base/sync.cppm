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
  inline void lock() noexcept {
    if (taken_.exchange(true, std::memory_order_acquire)) lock_taken();
  }
  inline bool try_lock() noexcept { return !taken_.exchange(true, std::memory_order_acquire); }
  inline void unlock() noexcept { taken_.store(false, std::memory_order_release); }

private:
  void lock_taken() noexcept;
  std::atomic<bool> taken_{false};
};

using quick_lock = std::unique_lock<quick_mutex>;

/// A condition that threads wait for under a quick_mutex, for long; as `condition`.
class quick_condition {
public:
  void wait(quick_lock& held);
  void notify_all() noexcept;

private:
  std::mutex guard_;
  std::condition_variable native_;
};

/// How often a thread meets others at a lock before it is worth memory to keep them apart.
inline constexpr unsigned patience = 32;

/// A thread of gpumem's own; join before destroying.
class thread {
public:
  thread() = default;
  explicit thread(std::function<void()> body) : native_{std::move(body)} {}
  bool joinable() const noexcept { return native_.joinable(); }
  void join() { native_.join(); }

private:
  std::thread native_;
};

/// The calling thread's dense number: small, unique among live threads, taken over by the next new thread after exit.
unsigned thread_number() noexcept;

/// Sleeps for about that long.
inline void sleep_for(duration span) { std::this_thread::sleep_for(span); }

} // namespace gpumem::sync
