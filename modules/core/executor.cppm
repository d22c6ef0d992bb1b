// Executors: they run work items, on the calling thread, on threads of their own, or on a job system of the user.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <memory>
export module gpumem:executor;
import :intrusive_list;
import :process;
import :std;
import :sync;
import :timer;

namespace gpumem {

namespace detail {
class executor_thread;
}

namespace extend {
/// One function call that an executor runs. It is a part of the operation that waits, so posting it allocates nothing.
export class work_item {
public:
  work_item() = default;
  work_item(work_item const&) = delete;
  work_item& operator=(work_item const&) = delete;
  /// Does the work. May destroy this object.
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
  /// Removes the item. Returns false if it is not in the list.
  bool remove(work_item& item) noexcept;
  /// Returns whether the list has no item.
  bool empty() const noexcept { return items_.empty(); }

private:
  detail::intrusive_list<work_item> items_;
};
} // namespace extend

/// Runs work items. Users may derive executors of their own from it. An executor must outlive the items posted to it.
/// The last item may run before the posting thread has left post(), and the owner of the item may then destroy the
/// executor: thread_executor, thread_pool_executor and executor_adaptor allow that. An executor that needs flush() must
/// outlive all threads that post to it. gpumem's own threads can be among these, and they end with the process.
export class executor {
public:
  /// Enqueues the item. Must not run it in this call, since the caller may hold a lock of gpumem. The caller does not
  /// touch the item afterwards, since another thread can run it immediately. Any thread.
  virtual void post(work_item& item) noexcept = 0;
  /// Removes a posted item that has not begun to run; returns false if it has begun. Destructors of operations call
  /// this.
  virtual bool try_cancel(work_item& item) noexcept = 0;
  /// Returns whether flush() must be called after each post. This function itself is called before the post.
  virtual bool needs_flush() const noexcept { return false; }
  /// Called after a post, while the calling thread holds no lock of gpumem. An executor that runs items on the posting
  /// thread runs them here.
  virtual void flush() noexcept {}

protected:
  ~executor() = default;
};

/// Runs items on the posting thread, after that thread has released gpumem's locks. If a running item posts another
/// item, that item runs after it, not inside it. It is for tests only: in a program, each call that frees memory could
/// then run arbitrary code.
export class inline_executor final : public executor {
public:
  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;
  bool needs_flush() const noexcept override { return true; }
  void flush() noexcept override;

private:
  sync::mutex mutex_;
  work_queue queue_ GPUMEM_GUARDED_BY(mutex_);
};

/// Runs items on one thread of its own, in the order of posting. The destructor runs all queued items and then joins
/// the thread, so it must not be called on that thread.
export class thread_executor final : public executor {
public:
  /// Throws std::system_error, std::bad_alloc, and cuda_error in a forked child.
  thread_executor();
  thread_executor(thread_executor const&) = delete;
  thread_executor& operator=(thread_executor const&) = delete;
  ~thread_executor();
  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;

  /// Ends the thread after the item that runs now. Items that are queued then, or posted later, never run. Returns
  /// false if the thread has not ended within `bound`, or if the thread itself makes the call. After a result of false
  /// the executor must never be destroyed.
  bool stop_within(sync::duration bound) noexcept;

private:
  std::unique_ptr<detail::executor_thread> thread_;
};

namespace detail {
// Runs items in the order of posting, and timers at their times, on one thread. This object is separate from the
// thread_executor, so that a forked child can leave it alive when the child destroys the thread_executor. The thread
// does not exist in the child, where the destructor of the condition variable would wait for it for ever.
class executor_thread final : public executor {
public:
  /// `name` is the thread's name in debuggers and in /proc, at most 15 characters.
  explicit executor_thread(char const* name) : thread_{[this, name] { run(name); }} {}
  executor_thread(executor_thread const&) = delete;
  executor_thread& operator=(executor_thread const&) = delete;
  ~executor_thread();
  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;
  /// Does what thread_executor::stop_within() does.
  bool stop_within(sync::duration bound) noexcept;

  /// start() makes the thread run the timer at `deadline`. After cancel() the timer does not run: cancel() waits for an
  /// expire() in progress, unless the thread itself calls it. try_cancel() does not wait, and returns false if the
  /// timer's expire() has begun.
  void start(timer& item, sync::time_point deadline) noexcept;
  void cancel(timer& item) noexcept;
  bool try_cancel(timer& item) noexcept;

private:
  void run(char const* name);
  void wait_for_work() GPUMEM_REQUIRES(mutex_);
  bool resume_first() GPUMEM_REQUIRES(mutex_);
  bool expire_first() GPUMEM_REQUIRES(mutex_);

  sync::mutex mutex_;
  sync::condition wake_;
  sync::condition over_; // notified when an expire() or the thread has ended
  work_queue queue_ GPUMEM_GUARDED_BY(mutex_);
  timer_heap timers_ GPUMEM_GUARDED_BY(mutex_);
  timer const* expiring_ GPUMEM_GUARDED_BY(mutex_) = nullptr; // the timer whose expire() runs now
  bool stopping_ GPUMEM_GUARDED_BY(mutex_) = false;
  bool stopped_within_ GPUMEM_GUARDED_BY(mutex_) = false;
  bool ended_ GPUMEM_GUARDED_BY(mutex_) = false;
  // Set when stop_within() returns false: cancel() then no longer waits for the thread.
  bool detached_ GPUMEM_GUARDED_BY(mutex_) = false;
  sync::thread thread_;
};

/// Returns the thread behind default_executor(); null if default_executor() was never called.
executor_thread* running_library_thread() noexcept;
} // namespace detail

/// Returns the default executor, the library thread: one thread per process, started at first use and stopped before
/// the driver shuts down. Items that have not run by then never run. Do not block this thread. While requests wait for
/// freed memory, pools poll on this thread for the work that still uses that memory. Requests end at their deadlines on
/// it, and coroutines that wait for the GPU poll and resume on it. Throws std::system_error or std::bad_alloc if the
/// thread cannot be started, cuda_error in a forked child.
export executor& default_executor();

/// Runs items on several threads of its own, which share one queue: items begin in the order of posting, several at a
/// time. The destructor runs all queued items and then joins the threads, so it must not be called on one of them.
export class thread_pool_executor final : public executor {
public:
  /// Throws std::invalid_argument for 0 threads, std::system_error, std::bad_alloc, and cuda_error in a forked child.
  explicit thread_pool_executor(std::size_t threads);
  thread_pool_executor(thread_pool_executor const&) = delete;
  thread_pool_executor& operator=(thread_pool_executor const&) = delete;
  ~thread_pool_executor();

  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;

  /// Returns the number of threads.
  std::size_t size() const noexcept;

private:
  class state;
  std::unique_ptr<state> state_;
};

namespace detail {

// Items wait in this queue. The user's function gives a job to the job system for each item, and each job runs the
// first item of the queue. So an item can be cancelled even if the job system cannot cancel jobs: one job then finds no
// item to run. Jobs may outlive the executor, so they share ownership of the queue.
class adapted_queue {
public:
  // Throws cuda_error in a forked child.
  adapted_queue();
  adapted_queue(adapted_queue const&) = delete;
  adapted_queue& operator=(adapted_queue const&) = delete;
  virtual ~adapted_queue() = default;

  bool remove(work_item& item) noexcept;
  // Runs the first item. Returns false if there is none.
  bool run_one() noexcept;
  // Makes the library thread run all queued items, because the job system did not take a job. `self` is this queue. It
  // is a parameter because std::enable_shared_from_this needs friend functions, which clang 19 does not give to
  // importers (llvm-project#126373).
  void rescue(std::shared_ptr<adapted_queue> self) noexcept;
  // Waits until no other thread is in a call of the user's function. Returns false if the calling thread is in one.
  bool wait_for_calls() noexcept;

private:
  friend class adapted_call;
  class rescuer final : public work_item {
  public:
    // Keeps the queue alive until the rescuer has run.
    std::shared_ptr<adapted_queue> keeps;
    void resume() noexcept override;
  };
  sync::mutex mutex_;
  sync::condition call_ended_;
  work_queue queue_ GPUMEM_GUARDED_BY(mutex_);
  std::size_t calls_ GPUMEM_GUARDED_BY(mutex_) = 0;
  rescuer rescuer_ GPUMEM_GUARDED_BY(mutex_);
};

// A call of the user's function for one item, which the constructor enqueues. The call is counted in `calls_` before
// another thread can run the item. The queue must outlive this object.
class adapted_call {
public:
  adapted_call(adapted_queue& queue, work_item& item) noexcept;
  adapted_call(adapted_call const&) = delete;
  adapted_call& operator=(adapted_call const&) = delete;
  ~adapted_call();
  // Returns how deeply the calling thread is nested in calls of the user's function for `queue`: a job that runs inside
  // such a call may post again.
  static std::size_t count_own(adapted_queue const& queue) noexcept;

private:
  adapted_queue& queue_;
  adapted_call const* const outer_; // the enclosing call on the same thread; null if there is none
};

template <class Post> class adapted_queue_of final : public adapted_queue {
public:
  explicit adapted_queue_of(Post post) : post{std::move(post)} {}
  std::optional<Post> post;
};

} // namespace detail

namespace extend {
export class executor_job;
} // namespace extend
export template <class Post>
  requires std::invocable<Post&, executor_job>
class executor_adaptor;

namespace extend {
/// One job: runs the first posted item that was not cancelled, or nothing if there is none. Copyable. Each copy may be
/// called once, on any thread, and may outlive the executor.
export class executor_job {
public:
  /// Runs the first item. Any thread.
  void operator()() const noexcept { queue_->run_one(); }

private:
  template <class Post>
    requires std::invocable<Post&, executor_job>
  friend class gpumem::executor_adaptor;
  explicit executor_job(std::shared_ptr<detail::adapted_queue> queue) noexcept : queue_{std::move(queue)} {}

  std::shared_ptr<detail::adapted_queue> queue_;
};
} // namespace extend

/// Makes an executor of a function that hands an executor_job to a job system:
/// `executor_adaptor where{[&](auto job) { asio::post(context, std::move(job)); }};`. The function is called on any
/// thread, and a lock of gpumem can be held meanwhile: the job must run later, not inside the call. If the function
/// throws, the library thread runs the posted items. Before the executor is destroyed, all operations that resume on it
/// must have been resumed or destroyed.
export template <class Post>
  requires std::invocable<Post&, executor_job>
class executor_adaptor final : public executor {
public:
  /// Throws std::bad_alloc, and cuda_error in a forked child. If the function is not noexcept, the constructor starts
  /// the library thread, and throws std::system_error if that fails.
  explicit executor_adaptor(Post post) : state_{std::make_shared<detail::adapted_queue_of<Post>>(std::move(post))} {
    if constexpr (!nothrow) default_executor();
  }
  executor_adaptor(executor_adaptor const&) = delete;
  executor_adaptor& operator=(executor_adaptor const&) = delete;

  /// Waits until no other thread is inside the function, and then destroys the function. The job system may be
  /// destroyed next. Any thread may call this, even one that runs a job. If the calling thread itself is inside the
  /// function, the function lives until that call and all jobs have ended.
  ~executor_adaptor() {
    if (state_->wait_for_calls()) state_->post.reset();
  }

  void post(work_item& item) noexcept override {
    if (detail::forked()) return;
    auto const state = state_; // keeps the state alive: if the function runs a job in this call, that can destroy *this
    detail::adapted_call const call{*state, item};
    if constexpr (nothrow) {
      (*state->post)(executor_job{state});
    } else {
      try {
        (*state->post)(executor_job{state});
      } catch (...) { state->rescue(state); }
    }
  }
  bool try_cancel(work_item& item) noexcept override { return state_->remove(item); }

private:
  static constexpr bool nothrow = std::is_nothrow_invocable_v<Post&, executor_job>;
  std::shared_ptr<detail::adapted_queue_of<Post>> const state_;
};

} // namespace gpumem
