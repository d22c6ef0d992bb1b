// Work that can be rolled back in favour of older work, and tried again.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <type_traits>
export module gpumem:with_retry;
import :acquire;
import :awaitable;
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

// While it lives the work can be rolled back; it dies when the body has freed its memory.
class rollback_permission {
public:
  rollback_permission(services_handle from, holder& work, std::size_t& need) noexcept
      : from_{from}, work_{work}, need_{need} {
    work_.allow_rollback();
  }
  rollback_permission(rollback_permission const&) = delete;
  rollback_permission& operator=(rollback_permission const&) = delete;
  ~rollback_permission() {
    work_.forbid_rollback();
    need_ = work_.take_need();
    if (need_ > 0) from_.table->on_holder_event(from_.state, &work_, holder_event::rolled_back);
  }

private:
  services_handle from_;
  holder& work_;
  std::size_t& need_;
};

} // namespace detail

/// Runs `body()`, a coroutine that gets its memory through `work`, and gives what it gives. While the body waits for
/// memory its request may end with outcome::preempted, because older work waits for what the body holds. If
/// the body ends with that acquire_error, having freed what it held, `rollback()` is called to undo the rest, which may
/// also make the work smaller. It must not throw. Then the work waits until there could be as much memory as it held
/// and asked for, and `body()` runs again, from its beginning. All other exceptions go through. The oldest work is
/// never preempted, so that some work always goes on. Resumes on the thread on which the body or the wait ends;
/// `resume_on`: see acquire_options.
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
    auto const limit = statistics_of(work).limit;
    co_await detail::turn_for(work, limit ? std::min(need, limit) : need, resume_on);
  }
}

} // namespace gpumem
