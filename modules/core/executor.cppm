// Where suspended work resumes.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:executor;
import :std;
import :sync;

namespace gpumem {

namespace detail {
class executor_thread;
}

namespace extend {
/// One thing to run, in place in the operation that waits: posting allocates nothing.
export class work_item {
public:
  work_item() = default;
  work_item(work_item const&) = delete;
  work_item& operator=(work_item const&) = delete;
  virtual void resume() noexcept = 0;

protected:
  ~work_item() = default;

private:
  friend class work_queue;
  work_item* next_ = nullptr;
  work_item* previous_ = nullptr;
  bool queued_ = false;
};

/// A first-in-first-out list of work items; the caller guards it.
export class work_queue {
public:
  void push(work_item& item) noexcept;
  work_item* pop() noexcept;
  bool remove(work_item& item) noexcept;
  bool empty() const noexcept { return first_ == nullptr; }

private:
  work_item* first_ = nullptr;
  work_item* last_ = nullptr;
};
} // namespace extend

/// Runs work items. An executor of the user's derives from it; it must outlive what is posted to it. What is posted
/// last may run, and its owner destroy the executor, before the posting thread has left post(): thread_executor,
/// thread_pool_executor and executor_adaptor allow that. An executor that flushes must outlive the threads that post;
/// gpumem's own end with the process.
export class executor {
public:
  /// Enqueues without running it; gpumem may hold a lock. The last touch of the item, which may run at once elsewhere.
  /// Any thread.
  virtual void post(work_item& item) noexcept = 0;
  /// Takes back what was posted and not begun; false if it has begun. An operation that is destroyed asks for it.
  virtual bool try_cancel(work_item& item) noexcept = 0;
  /// Whether it wants a flush() after each post. Asked before the post.
  virtual bool needs_flush() const noexcept { return false; }
  /// Called after a post, with no lock held: the place for an executor that runs on the posting thread.
  virtual void flush() noexcept {}

protected:
  ~executor() = default;
};

/// Runs on a thread that posted, after it has left gpumem's locks: what is posted from within a work item runs after
/// it, not inside it. For tests: a free then runs arbitrary code.
export class inline_executor final : public executor {
public:
  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;
  bool needs_flush() const noexcept override { return true; }
  void flush() noexcept override;

private:
  sync::mutex mutex_;
  work_queue queue_;
};

/// Runs on one thread of its own, in the order of posting. The destructor runs what is queued, then joins; it must not
/// run on that thread.
export class thread_executor final : public executor {
public:
  thread_executor();
  thread_executor(thread_executor const&) = delete;
  thread_executor& operator=(thread_executor const&) = delete;
  ~thread_executor();
  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;

  /// Ends the thread after the work item that runs now; what is queued then, or posted later, never runs. False if
  /// that took longer than the bound, or if it is called on that thread: the executor must then never be destroyed.
  bool stop_within(sync::duration bound) noexcept;

private:
  std::unique_ptr<detail::executor_thread> thread_;
};

/// The default: one library thread for the process, started at first use, stopped before the driver goes; what has not
/// run by then never does. Do not block it: pools look there for the end of work that a request waits for, and requests
/// end there by their deadlines. Throws std::system_error, std::bad_alloc where it cannot be started.
export executor& default_executor();

} // namespace gpumem
