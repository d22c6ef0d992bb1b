// executor_adaptor: makes an executor of any job system, such as a thread pool of the user.
// SPDX-License-Identifier: Apache-2.0
module;
#include <memory>
export module gpumem:executor_adaptor;
import :executor;
import :process;
import :std;
import :sync;

namespace gpumem {

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
  work_queue queue_ __attribute__((guarded_by(mutex_)));
  std::size_t calls_ __attribute__((guarded_by(mutex_))) = 0;
  rescuer rescuer_ __attribute__((guarded_by(mutex_)));
};

// A call of the user's function for one item, which the constructor enqueues. The call is counted in `calls_` before
// another thread can run the item. The queue must outlive this object.
class adapted_call {
public:
  adapted_call(adapted_queue& queue, work_item& item) noexcept;
  adapted_call(adapted_call const&) = delete;
  adapted_call& operator=(adapted_call const&) = delete;
  ~adapted_call();
  // Returns the number of calls of the user's function for `queue` in which the calling thread is. It is more than one
  // if the function runs a job inside the call, and that job posts another item.
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
  void operator()() const noexcept { from_->run_one(); }

private:
  template <class Post>
    requires std::invocable<Post&, executor_job>
  friend class gpumem::executor_adaptor;
  explicit executor_job(std::shared_ptr<detail::adapted_queue> from) noexcept : from_{std::move(from)} {}

  std::shared_ptr<detail::adapted_queue> from_;
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
