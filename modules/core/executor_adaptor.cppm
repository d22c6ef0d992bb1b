// Any job system as an executor.
// SPDX-License-Identifier: Apache-2.0
module;
#include <memory>
export module gpumem:executor_adaptor;
import :executor;
import :fork;
import :std;
import :sync;

namespace gpumem {

namespace detail {

// What is posted waits here, so that it can be taken back from a job system that gives nothing back; a job then finds
// nothing to run. Jobs share it, since they may outlive the executor.
class adapted_queue : public std::enable_shared_from_this<adapted_queue> {
public:
  // Throws cuda_error in a forked child.
  adapted_queue();
  adapted_queue(adapted_queue const&) = delete;
  adapted_queue& operator=(adapted_queue const&) = delete;
  virtual ~adapted_queue() = default;

  bool remove(work_item& item) noexcept;
  // Runs the first, if there is one.
  bool run_one() noexcept;
  // Has the library thread run all that is queued, since no job came.
  void rescue() noexcept;
  // Returns once no other thread is in a call; whether the calling thread is in none either.
  bool wait_for_calls() noexcept;

private:
  friend class adapted_call;
  class rescuer final : public work_item {
  public:
    // Keeps the queue alive until it has run.
    std::shared_ptr<adapted_queue> keeps;
    void resume() noexcept override;
  };
  sync::mutex mutex_;
  sync::condition call_ended_;
  work_queue queue_;
  std::size_t calls_ = 0;
  rescuer rescuer_;
};

// The call of the function for one item. Begins before another thread can run the item; the queue must outlive it.
class adapted_call {
public:
  adapted_call(adapted_queue& queue, work_item& item) noexcept;
  adapted_call(adapted_call const&) = delete;
  adapted_call& operator=(adapted_call const&) = delete;
  ~adapted_call();
  // The calling thread's own, for this queue: more than one where the function runs jobs.
  static std::size_t count_own(adapted_queue const& queue) noexcept;

private:
  adapted_queue& queue_;
  adapted_call const* const outer_; // the thread's call that this one is inside
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
/// One job: runs what was posted first and not taken back; nothing if that was all. Copyable; runs on any thread, once
/// a copy, and may outlive the executor.
export class executor_job {
public:
  void operator()() const noexcept { from_->run_one(); }

private:
  template <class Post>
    requires std::invocable<Post&, executor_job>
  friend class gpumem::executor_adaptor;
  explicit executor_job(std::shared_ptr<detail::adapted_queue> from) noexcept : from_{std::move(from)} {}

  std::shared_ptr<detail::adapted_queue> from_;
};
} // namespace extend

/// Makes an executor of a function that hands a executor_job to a job system:
/// `executor_adaptor where{[&](auto job) { asio::post(context, std::move(job)); }};`. The function is called from any
/// thread, and gpumem may hold a lock: the job must run later, not inside the call. Where the function throws, the
/// library thread runs what was posted. Before the executor is destroyed, all operations that resume there must have
/// been resumed or destroyed.
export template <class Post>
  requires std::invocable<Post&, executor_job>
class executor_adaptor final : public executor {
public:
  /// Throws std::bad_alloc, std::system_error where the library thread, which a callable that may throw can need,
  /// cannot be started.
  explicit executor_adaptor(Post post) : state_{std::make_shared<detail::adapted_queue_of<Post>>(std::move(post))} {
    if constexpr (!nothrow) default_executor();
  }
  executor_adaptor(executor_adaptor const&) = delete;
  executor_adaptor& operator=(executor_adaptor const&) = delete;

  /// Waits until no other thread is inside the function, and then destroys it: the job system may end next. Any thread
  /// may call it, also one that runs a job. A function that the calling thread itself is inside lives on until that
  /// call and all jobs are over.
  ~executor_adaptor() {
    if (state_->wait_for_calls()) state_->post.reset();
  }

  void post(work_item& item) noexcept override {
    if (detail::forked()) return;
    auto const state = state_; // a job that the function runs inside the call may end this
    detail::adapted_call const call{*state, item};
    if constexpr (nothrow) {
      (*state->post)(executor_job{state});
    } else {
      try {
        (*state->post)(executor_job{state});
      } catch (...) { state->rescue(); }
    }
  }
  bool try_cancel(work_item& item) noexcept override { return state_->remove(item); }

private:
  static constexpr bool nothrow = std::is_nothrow_invocable_v<Post&, executor_job>;
  std::shared_ptr<detail::adapted_queue_of<Post>> const state_;
};

} // namespace gpumem
