// when_all: awaits several awaitables at once.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
#include <tuple>
#include <utility>
export module gpumem:when_all;
import :coroutine;
import :std;
import :task;

namespace gpumem::detail {

// Base class of objects that are told when children end. Any thread.
class join_counter {
public:
  // Called when a child threw.
  virtual void child_failed(std::exception_ptr error) noexcept = 0;
  // Called when a child has ended; if it threw, after child_failed(). Returns the coroutine that runs next on this
  // thread. The child's frame and the counter itself can be destroyed when this returns.
  virtual std::coroutine_handle<> child_finished() noexcept = 0;

protected:
  ~join_counter() = default;
};

template <class R> class when_all_child {
public:
  class promise_type final : public coroutine_result<R> {
    struct final_awaiter {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) const noexcept {
        return self.promise().counter->child_finished();
      }
      void await_resume() const noexcept {}
    };

  public:
    when_all_child get_return_object() noexcept {
      return when_all_child{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }
    void unhandled_exception() noexcept { counter->child_failed(std::current_exception()); }

    join_counter* counter = nullptr;
  };

  when_all_child(when_all_child&& other) noexcept : frame_{std::exchange(other.frame_, nullptr)} {}
  when_all_child& operator=(when_all_child&&) = delete;
  ~when_all_child() {
    if (frame_) frame_.destroy();
  }

  // Called once; runs the child on this thread until it suspends or ends.
  void start(join_counter& counter) {
    frame_.promise().counter = &counter;
    frame_.resume();
  }
  R take() { return frame_.promise().take(); }

private:
  explicit when_all_child(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}
  std::coroutine_handle<promise_type> frame_;
};

// Returns a child that awaits `awaited_work`. If A is a reference, the child refers to the caller's object. Otherwise
// the child's frame keeps the value.
template <class A> when_all_child<await_value_t<A>> make_child(A awaited_work) {
  co_return co_await static_cast<A&&>(awaited_work);
}

} // namespace gpumem::detail

// Exported so that `auto [a, b] = co_await when_all(…)` needs no header.
export namespace std {
using std::get;
using std::tuple_element;
using std::tuple_size;
} // namespace std

namespace gpumem {

namespace detail {

// Counts the children that have not ended yet, plus one for the awaiting coroutine, which starts them. A child is a
// coroutine that awaits one of the awaitables. The child that makes the count 0 resumes the awaiting coroutine.
class all_of final : public join_counter {
public:
  explicit all_of(std::size_t count) noexcept : running_{count + 1} {}
  void child_failed(std::exception_ptr error) noexcept override;
  std::coroutine_handle<> child_finished() noexcept override;

  void begin(std::coroutine_handle<> continuation) noexcept { continuation_ = continuation; }
  // Counts down for the awaiting coroutine, after it has started all children. Returns false if all have ended. If this
  // returns true, *this can be destroyed already.
  bool must_wait() noexcept { return running_.fetch_sub(1, std::memory_order_acq_rel) != 1; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

private:
  std::atomic<std::size_t> running_;
  std::atomic<bool> has_failed_{false};
  std::exception_ptr error_;
  std::coroutine_handle<> continuation_;
};

template <class R> element_t<R> take_element(when_all_child<R>& child) {
  if constexpr (std::is_void_v<R>) {
    return {};
  } else {
    return child.take();
  }
}

template <class... R> class all_of_tuple {
public:
  explicit all_of_tuple(when_all_child<R>... children) noexcept : children_{std::move(children)...} {}
  static constexpr std::size_t size() noexcept { return sizeof...(R); }
  void start(join_counter& counter) {
    std::apply([&](auto&... one) { (one.start(counter), ...); }, children_);
  }
  std::tuple<element_t<R>...> take() {
    return std::apply([](auto&... one) { return std::tuple<element_t<R>...>{take_element(one)...}; }, children_);
  }

private:
  std::tuple<when_all_child<R>...> children_;
};

template <class R> class all_of_vector {
public:
  explicit all_of_vector(std::vector<when_all_child<R>> children) noexcept : children_{std::move(children)} {}
  std::size_t size() const noexcept { return children_.size(); }
  void start(join_counter& counter) {
    for (auto& one : children_) one.start(counter);
  }
  auto take() {
    if constexpr (!std::is_void_v<R>) {
      std::vector<element_t<R>> results;
      results.reserve(children_.size());
      for (auto& one : children_) results.push_back(take_element(one));
      return results;
    }
  }

private:
  std::vector<when_all_child<R>> children_;
};

} // namespace detail

namespace extend {
/// The result of when_all. It can be awaited once, and moved before that. Awaiting it a second time, or after it was
/// moved from, throws std::logic_error.
export template <class All> class [[nodiscard]] when_all_awaitable {
public:
  /// Only when_all() calls it.
  explicit when_all_awaitable(All children) noexcept : children_{std::move(children)} {}
  when_all_awaitable(when_all_awaitable&& other) noexcept
      : children_{std::move(other.children_)}, used_{std::exchange(other.used_, true)} {}
  when_all_awaitable& operator=(when_all_awaitable&& other) noexcept {
    children_ = std::move(other.children_);
    used_ = std::exchange(other.used_, true);
    return *this;
  }

  /// The awaiter, made by the one `co_await`.
  class operation {
  public:
    /// `refused`: whether the when_all_awaitable was awaited before, or moved from.
    operation(All& children, bool refused) noexcept : children_{children}, point_{children.size()}, refused_{refused} {}
    /// Returns whether there is nothing to wait for.
    bool await_ready() const noexcept { return refused_ || children_.size() == 0; }
    /// Starts all children in order on the calling thread. Returns false if all have ended by then.
    bool await_suspend(std::coroutine_handle<> continuation) {
      point_.begin(continuation);
      children_.start(point_);
      return point_.must_wait();
    }
    /// Returns the results, or throws what the comment of when_all says.
    auto await_resume() {
      if (refused_) throw std::logic_error{"gpumem: a when_all was awaited twice, or was moved from"};
      point_.rethrow();
      return children_.take();
    }

  private:
    All& children_;
    detail::all_of point_;
    bool const refused_;
  };

  /// Begins the wait.
  operation operator co_await() noexcept { return {children_, std::exchange(used_, true)}; }

private:
  All children_;
  bool used_ = false; // whether it was awaited or moved from
};
} // namespace extend

/// Returns an awaitable that awaits all arguments. A `co_await` of it starts them in order on the thread of the
/// awaiting coroutine. That coroutine resumes on the thread on which the last of them ends. The result is a tuple, with
/// std::monostate for void and std::reference_wrapper for a reference. If some throw, the exception that was thrown
/// first is rethrown after all have ended. Arguments are taken by value. Throws std::bad_alloc.
export template <awaitable... A> auto when_all(A... awaitables) {
  using tuple = detail::all_of_tuple<await_value_t<A>...>;
  return when_all_awaitable<tuple>{tuple{detail::make_child<A>(std::move(awaitables))...}};
}

/// Returns an awaitable that awaits all elements of `awaitables`, as the other overload awaits its arguments. The
/// result is a vector in the order of `awaitables`, or nothing if the elements return void.
export template <awaitable A> auto when_all(std::vector<A> awaitables) {
  using result = await_value_t<A>;
  std::vector<detail::when_all_child<result>> children;
  children.reserve(awaitables.size());
  for (auto& one : awaitables) children.push_back(detail::make_child<A>(std::move(one)));
  using vector = detail::all_of_vector<result>;
  return when_all_awaitable<vector>{vector{std::move(children)}};
}

} // namespace gpumem
