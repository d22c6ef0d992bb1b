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

  void push(resumption& item) noexcept;
  bool remove(resumption& item) noexcept;
  // Runs the first, if there is one.
  bool run_one() noexcept;
  // Has the library thread run all that is queued, since no job came.
  void rescue() noexcept;

private:
  class rescuer final : public resumption {
  public:
    // Keeps the queue alive until it has run.
    std::shared_ptr<adapted_queue> keeps;
    void resume() noexcept override;
  };
  sync::mutex guard_;
  resumption_queue queue_;
  rescuer rescuer_;
};

template <class Post> class adapted_queue_of final : public adapted_queue {
public:
  explicit adapted_queue_of(Post post) : post{std::move(post)} {}
  Post post;
};

} // namespace detail

/// One job: runs what was posted first and not taken back; nothing if that was all. Copyable; runs on any thread, once
/// a copy, and may outlive the executor.
export class resumption_job {
public:
  explicit resumption_job(std::shared_ptr<detail::adapted_queue> from) noexcept : from_{std::move(from)} {}
  void operator()() const noexcept { from_->run_one(); }

private:
  std::shared_ptr<detail::adapted_queue> from_;
};

/// Makes an executor of a callable that hands a resumption_job to a job system, which must run it later and not inside
/// the call: `executor_adaptor where{[&](auto job) { asio::post(context, std::move(job)); }};`. It is called from any
/// thread, and gpumem may hold a lock. Where it throws, the library thread runs what was posted. The job system must
/// run its jobs, or all operations that resume there must be destroyed, before the executor is.
export template <class Post>
  requires std::invocable<Post&, resumption_job>
class executor_adaptor final : public executor {
public:
  /// Throws std::bad_alloc, std::system_error where the library thread, which a callable that may throw can need,
  /// cannot be started.
  explicit executor_adaptor(Post post) : state_{std::make_shared<detail::adapted_queue_of<Post>>(std::move(post))} {
    if constexpr (!nothrow) library_executor();
  }
  executor_adaptor(executor_adaptor const&) = delete;
  executor_adaptor& operator=(executor_adaptor const&) = delete;

  void post(resumption& item) noexcept override {
    if (detail::forked()) return;
    auto const state = state_; // once the item is queued, another job may run it, and end this
    state->push(item);
    if constexpr (nothrow) {
      state->post(resumption_job{state});
    } else {
      try {
        state->post(resumption_job{state});
      } catch (...) { state->rescue(); }
    }
  }
  bool retract(resumption& item) noexcept override { return state_->remove(item); }

private:
  static constexpr bool nothrow = std::is_nothrow_invocable_v<Post&, resumption_job>;
  std::shared_ptr<detail::adapted_queue_of<Post>> const state_;
};

} // namespace gpumem
