// Executors: where suspended work resumes.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:executor;
import :intrusive_list;
import :std;
import :sync;
import :timer;

namespace gpumem {

namespace detail {
class executor_thread;
}

namespace extend {
/// One function call to run. It lies inside the operation that waits, so that posting it allocates nothing.
export class work_item {
public:
  work_item() = default;
  work_item(work_item const&) = delete;
  work_item& operator=(work_item const&) = delete;
  /// Does the work. The item may be destroyed meanwhile.
  virtual void resume() noexcept = 0;

protected:
  ~work_item() = default;

private:
  friend class work_queue;
  friend class detail::intrusive_list<work_item>;
  detail::list_links<work_item> links_;
  bool queued_ = false;
};

/// A first-in-first-out list of work items. Not thread-safe: the caller holds a lock.
export class work_queue {
public:
  /// Adds the item at the end.
  void push(work_item& item) noexcept;
  /// Removes the first item and returns it; null if there is none.
  work_item* pop() noexcept;
  /// Removes the item; false if it is not in the list.
  bool remove(work_item& item) noexcept;
  /// Whether there is no item.
  bool empty() const noexcept { return items_.empty(); }

private:
  detail::intrusive_list<work_item> items_;
};
} // namespace extend

/// Runs work items; users derive executors of their own from it. It must outlive the items posted to it. The last item
/// may run, and its owner may destroy the executor, before the posting thread has left post(): thread_executor,
/// thread_pool_executor and executor_adaptor allow that. An executor that needs flush() must outlive all threads that
/// post; gpumem's own threads end with the process.
export class executor {
public:
  /// Enqueues the item without running it; gpumem may hold a lock. The caller does not touch the item afterwards, since
  /// another thread may run it at once. Any thread.
  virtual void post(work_item& item) noexcept = 0;
  /// Removes a posted item that has not begun; false if it has begun. The destructor of an operation calls this.
  virtual bool try_cancel(work_item& item) noexcept = 0;
  /// Whether flush() must be called after each post. Called before the post.
  virtual bool needs_flush() const noexcept { return false; }
  /// Called after a post, with no lock held. An executor that runs items on the posting thread runs them here.
  virtual void flush() noexcept {}

protected:
  ~executor() = default;
};

/// Runs items on the posting thread, after that thread has released gpumem's locks. An item that is posted by a running
/// item runs after it, not inside it. For tests: a free may then run arbitrary code.
export class inline_executor final : public executor {
public:
  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;
  bool needs_flush() const noexcept override { return true; }
  void flush() noexcept override;

private:
  sync::mutex mutex_;
  work_queue queue_ __attribute__((guarded_by(mutex_)));
};

/// Runs items on one thread of its own, in the order of posting. The destructor runs all queued items and then joins
/// the thread; it must not run on that thread.
export class thread_executor final : public executor {
public:
  /// Throws std::system_error, std::bad_alloc, and cuda_error in a forked child.
  thread_executor();
  thread_executor(thread_executor const&) = delete;
  thread_executor& operator=(thread_executor const&) = delete;
  ~thread_executor();
  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;

  /// Ends the thread after the item that runs now. Items that are queued then, or posted later, never run. False if
  /// that took longer than `bound`, or if it is called on that thread: the executor must then never be destroyed.
  bool stop_within(sync::duration bound) noexcept;

private:
  std::unique_ptr<detail::executor_thread> thread_;
};

namespace detail {
// Runs items in the order of posting, and timers. Separate from thread_executor, because a forked child must not
// destroy it: the thread does not exist there, and the destructor of a condition waits for the threads that wait on it.
class executor_thread final : public executor {
public:
  /// `name`: the name of the thread in debuggers and in /proc, at most 15 characters.
  explicit executor_thread(char const* name) : thread_{[this, name] { run(name); }} {}
  executor_thread(executor_thread const&) = delete;
  executor_thread& operator=(executor_thread const&) = delete;
  ~executor_thread();
  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;
  /// As thread_executor::stop_within().
  bool stop_within(sync::duration bound) noexcept;

  /// As start_timer(), cancel_timer() and try_cancel_timer(), on this thread.
  void start(timer& item, sync::time_point when) noexcept;
  void cancel(timer& item) noexcept;
  bool try_cancel(timer& item) noexcept;

private:
  void run(char const* name);
  void wait_for_work() __attribute__((requires_capability(mutex_)));
  bool resume_first() __attribute__((requires_capability(mutex_)));
  bool expire_first() __attribute__((requires_capability(mutex_)));

  sync::mutex mutex_;
  sync::condition wake_;
  sync::condition over_; // an expire() or the thread has ended
  work_queue queue_ __attribute__((guarded_by(mutex_)));
  timer_heap timers_ __attribute__((guarded_by(mutex_)));
  timer const* expiring_ __attribute__((guarded_by(mutex_))) = nullptr; // only compared, never dereferenced
  bool stopping_ __attribute__((guarded_by(mutex_))) = false;
  bool stopped_within_ __attribute__((guarded_by(mutex_))) = false;
  bool ended_ __attribute__((guarded_by(mutex_))) = false;
  // The thread did not end within the bound, and is no longer waited for.
  bool detached_ __attribute__((guarded_by(mutex_))) = false;
  sync::thread thread_;
};

/// Returns the thread of default_executor(); null if that was never called.
executor_thread* running_library_thread() noexcept;
} // namespace detail

/// Returns the default executor: one library thread per process, started at first use and stopped before the driver
/// shuts down. Items that have not run by then never run. Do not block it: pools poll there for the work that requests
/// wait for, and requests end there at their deadlines. Waits for the GPU that resume there are polled there too. Throws
/// std::system_error or std::bad_alloc if the thread cannot be started, cuda_error in a forked child.
export executor& default_executor();

} // namespace gpumem
