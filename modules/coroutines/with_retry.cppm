// with_retry: runs work that rolls back in favour of older work and runs again.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <type_traits>
export module gpumem:with_retry;
import :acquire;
import :coroutine;
import :cuda;
import :error;
import :holder;
import :scope;
import :services;
import :std;
import :stream;
import :task;

namespace gpumem {

namespace detail {

// While this object lives, the pool may preempt the work: end its request in favour of older work. The destructor runs
// after the body has freed its memory. If the work was preempted, the destructor tells the pool so and sets `need` to
// the bytes that the work held and asked for.
class rollback_permission {
public:
  rollback_permission(services_handle services, holder& work, std::size_t& need) noexcept
      : services_{services}, work_{work}, need_{need} {
    work_.allow_rollback();
  }
  rollback_permission(rollback_permission const&) = delete;
  rollback_permission& operator=(rollback_permission const&) = delete;
  ~rollback_permission() {
    work_.forbid_rollback();
    need_ = work_.take_need();
    if (need_ > 0 && services_.table->on_holder_event)
      services_.table->on_holder_event(services_.state, &work_, holder_event::rolled_back);
  }

private:
  services_handle services_;
  holder& work_;
  std::size_t& need_;
};

} // namespace detail

/// Runs `body()`, a coroutine that gets its memory through `work`, and returns its result. While the body waits for
/// memory, the pool may end its request with outcome::preempted, because older work waits for memory that the body
/// holds. The body must then free its memory and end with that acquire_error. with_retry then calls `rollback()`. That
/// function undoes the other effects of the body, can make the work smaller, and must not throw. Then with_retry waits
/// until the pool could give the bytes that the work held and asked for, or as many as its limit allows. It then runs
/// `body()` again from its start.
///
/// All other exceptions pass through. The oldest work is never preempted, so some work always goes on. The awaiting
/// coroutine resumes on the thread on which the body ends. `resume_on`: the executor on which with_retry resumes after
/// its wait for these bytes; null: the library thread.
export template <mr::resource Upstream, std::invocable Body, std::invocable Rollback>
task<await_result_t<std::invoke_result_t<Body&>>> with_retry(scope<Upstream> work, Body body, Rollback rollback,
                                                             executor* resume_on = nullptr) {
  for (;;) {
    std::size_t need = 0;
    try {
      detail::rollback_permission const permission{work.services(), work.as_holder(), need};
      co_return co_await body();
    } catch (acquire_error const& e) {
      if (e.reason() != outcome::preempted) throw;
    }
    rollback();
    static_cast<void>(co_await detail::turn_for(work, need, resume_on));
  }
}

} // namespace gpumem
