// Locks, threads, thread indices and the clock for the library's tests. Only one thread at a time runs: the thread that
// holds a token, the baton. At each schedule point (a lock, a wait, a driver call) a seed decides which thread gets the
// baton.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <chrono>
#include <functional>
#include <mutex>
export module gpumem:sync;
import :locks;
import :std;

export namespace gpumem::detail::sync {

/// Virtual time. It advances by 100 ns at each schedule point. If all threads wait, it advances to the next deadline.
struct clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<clock, duration>;
  static constexpr bool is_steady = true;
  static time_point now() noexcept;
};
using time_point = clock::time_point;
using duration = clock::duration;

inline time_point now() noexcept { return clock::now(); }
inline constexpr bool real_time = false;

void schedule_point() noexcept;

class GPUMEM_CAPABILITY("mutex") mutex {
public:
  mutex() = default;
  explicit mutex(bool locked) noexcept : locked_{locked} {}
  GPUMEM_ACQUIRES() void lock();
  GPUMEM_TRY_ACQUIRES(true) bool try_lock();
  GPUMEM_RELEASES() void unlock();
  /// Aborts unless a thread holds the mutex.
  GPUMEM_ASSERTS() void assert_held() const noexcept;

private:
  friend class condition;
  bool locked_ = false;
};

using lock = scoped_lock<mutex>;

class condition {
public:
  void wait(mutex& mutex) GPUMEM_REQUIRES(mutex);
  void wait_until(mutex& mutex, time_point deadline) GPUMEM_REQUIRES(mutex);
  void notify_one() noexcept;
  void notify_all() noexcept;

private:
  // A waiting thread takes the next ticket. It may go on once `served_` has reached its ticket.
  std::uint64_t tickets_ = 0;
  std::uint64_t served_ = 0;
};

using spin_mutex = mutex;
using spin_lock = lock;

class spin_condition {
public:
  template <class Locks> void wait(Locks& lock) {
    auto const ticket = ++tickets_;
    lock.unlock();
    wait_for(ticket);
    lock.lock();
  }
  void notify_all() noexcept { served_ = tickets_; }

private:
  void wait_for(std::uint64_t ticket);
  std::uint64_t tickets_ = 0; // as in condition
  std::uint64_t served_ = 0;
};

/// In the shipped library, a mutex that one thread, its owner, can lock faster than all other threads. This form has
/// the same functions, but all threads lock it in the same way.
class GPUMEM_CAPABILITY("mutex") biased_mutex {
public:
  void enable_bias() noexcept {}
  GPUMEM_ACQUIRES() void lock() { taken_.lock(); }
  GPUMEM_RELEASES() void unlock() { taken_.unlock(); }
  void request_revoke() noexcept {}
  static void fence_owner_threads() noexcept {}
  GPUMEM_ACQUIRES() void lock_revoked() { taken_.lock(); }
  GPUMEM_RELEASES() void unlock_revoked() { taken_.unlock(); }
  GPUMEM_ASSERTS() void assert_held() const noexcept { taken_.assert_held(); }

private:
  mutex taken_;
};

using biased_lock = scoped_lock<biased_mutex>;

inline constexpr unsigned max_biased_threads = 4;
/// A thread that has found locks taken this many times gets memory of its own. Low, since the runs of tests are short.
inline constexpr unsigned contention_threshold = 1;

class thread {
public:
  thread() noexcept;
  explicit thread(std::function<void()> body);
  thread(thread&&) noexcept;
  thread& operator=(thread&&) noexcept;
  ~thread();
  bool joinable() const noexcept { return static_cast<bool>(running_); }
  void join();

private:
  struct running;
  std::unique_ptr<running> running_;
};

inline constexpr unsigned no_index = 1u << 31;
unsigned thread_index() noexcept;

/// Sets the function that runs, within the schedule, when the calling thread ends. If the schedule has not started that
/// thread, the function never runs.
void at_thread_exit(void (*function)() noexcept);

void sleep_for(duration span);

} // namespace gpumem::detail::sync

/// Runs real threads that pass one baton. A run replays exactly from its seed.
export namespace gpumem::detail::schedule {

struct result {
  std::uint64_t marks = 0;    ///< schedule points that were passed
  std::uint64_t switches = 0; ///< switches to another thread, at schedule points and waits
};

/// Runs the bodies as threads until all have returned. The seed chooses the next thread at each wait and, on average,
/// at one schedule point in `switch_one_in`. Rarer switches make a run faster, and find errors that need many steps
/// without a switch. If all threads wait for each other, prints the seed and aborts. Must not be called within a run.
result run(std::uint64_t seed, std::vector<std::function<void()>> bodies, unsigned switch_one_in = 1);

/// Chooses the thread that goes on if more than one can: returns a number below `candidates`. If `may_stay`, number 0
/// is the thread that has the baton, and any other number preempts that thread.
using chooser = std::function<std::size_t(std::size_t candidates, bool may_stay)>;

/// Runs the bodies, and calls `choose` at every schedule point and wait. The same choices give the same run.
result run(chooser choose, std::vector<std::function<void()>> bodies);

/// For a simulated driver that cannot go on: lets other threads run until one of them has passed a schedule point.
/// Returns false if no other thread can run.
bool blocked() noexcept;

} // namespace gpumem::detail::schedule

namespace gpumem {
namespace sync = detail::sync; // for the library alone
} // namespace gpumem
