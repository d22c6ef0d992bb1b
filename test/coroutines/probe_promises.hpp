// Coroutines with other promise types: what a promise may do to gpumem's awaitables. Include it after `import gpumem;`:
// it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

// Counts the frames of the probes, so that tests can subtract them from the calls of operator new.
struct counted_frame {
  static inline thread_local std::size_t made = 0;
  static void* operator new(std::size_t bytes) {
    ++made;
    return ::operator new(bytes);
  }
  static void operator delete(void* frame) { ::operator delete(frame); }
};

// A coroutine that starts at once and is destroyed with its handle.
template <class Promise> class probe_handle {
public:
  using promise_type = Promise;
  explicit probe_handle(std::coroutine_handle<Promise> frame) noexcept : frame_{frame} {}
  probe_handle(probe_handle&& other) noexcept : frame_{std::exchange(other.frame_, nullptr)} {}
  probe_handle& operator=(probe_handle&&) = delete;
  ~probe_handle() {
    if (frame_) frame_.destroy();
  }
  bool done() const { return frame_.done(); }
  Promise& promise() const { return frame_.promise(); }

private:
  std::coroutine_handle<Promise> frame_;
};

template <class Promise> struct probe_base : counted_frame {
  probe_handle<Promise> get_return_object() {
    return probe_handle<Promise>{std::coroutine_handle<Promise>::from_promise(static_cast<Promise&>(*this))};
  }
  std::suspend_never initial_suspend() noexcept { return {}; }
  std::suspend_always final_suspend() noexcept { return {}; }
  void return_void() noexcept {}
  void unhandled_exception() noexcept { std::abort(); } // the bodies below catch the exceptions that they expect
};

struct plain_promise : probe_base<plain_promise> {};

// Holds the awaiter of an awaitable in place, since it cannot move.
template <class A> class in_place {
public:
  explicit in_place(A&& what) : operation_{static_cast<A&&>(what).operator co_await()} {}
  bool await_ready() { return operation_.await_ready(); }
  auto await_resume() { return operation_.await_resume(); }

protected:
  decltype(std::declval<A>().operator co_await()) operation_;
};

// A promise that hides its own type from what it awaits.
struct erasing_promise : probe_base<erasing_promise> {
  template <class A> struct erased : in_place<A> {
    using in_place<A>::in_place;
    auto await_suspend(std::coroutine_handle<> h) { return this->operation_.await_suspend(h); }
  };
  template <class A> erased<A> await_transform(A&& what) { return erased<A>{static_cast<A&&>(what)}; }
};

// A promise that counts its awaits and passes its own handle on.
struct transforming_promise : probe_base<transforming_promise> {
  template <class A> struct counted : in_place<A> {
    using in_place<A>::in_place;
    auto await_suspend(std::coroutine_handle<transforming_promise> h) {
      ++h.promise().suspended;
      return this->operation_.await_suspend(h);
    }
  };
  template <class A> counted<A> await_transform(A&& what) {
    ++awaited;
    return counted<A>{static_cast<A&&>(what)};
  }
  int awaited = 0;
  int suspended = 0;
};

// A promise as in P2300: a stop is not an exception, and the promise decides which coroutine resumes.
struct stoppable_promise : probe_base<stoppable_promise> {
  std::coroutine_handle<> unhandled_stopped() noexcept {
    ++stops;
    return std::noop_coroutine();
  }
  int stops = 0;
};

// A coroutine around the awaitable, awaited by another coroutine: its frame holds the operation and is destroyed first.
template <class T> class wrapper {
public:
  struct promise_type : counted_frame {
    wrapper get_return_object() { return wrapper{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    auto final_suspend() noexcept {
      struct awaiter {
        bool await_ready() noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> h) noexcept {
          return h.promise().outer;
        }
        void await_resume() noexcept {}
      };
      return awaiter{};
    }
    void return_value(T value) { result.emplace(std::move(value)); }
    void unhandled_exception() noexcept { error = std::current_exception(); }
    std::coroutine_handle<> outer;
    std::optional<T> result;
    std::exception_ptr error;
  };
  explicit wrapper(std::coroutine_handle<promise_type> frame) noexcept : frame_{frame} {}
  wrapper(wrapper&& other) noexcept : frame_{std::exchange(other.frame_, nullptr)} {}
  wrapper& operator=(wrapper&&) = delete;
  ~wrapper() {
    if (frame_) frame_.destroy();
  }
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> outer) {
    frame_.promise().outer = outer;
    return frame_;
  }
  T await_resume() {
    if (frame_.promise().error) std::rethrow_exception(frame_.promise().error);
    return std::move(*frame_.promise().result);
  }

private:
  std::coroutine_handle<promise_type> frame_;
};

template <class A> wrapper<bool> wrap(A what) {
  (void)co_await std::move(what);
  co_return true;
}

struct as_it_is {
  template <class A> A operator()(A what) const { return what; }
};
struct wrapped {
  template <class A> wrapper<bool> operator()(A what) const { return wrap(std::move(what)); }
};

// Operations as in P2300, which may end inside their completion. After a stop the frame is destroyed before the promise
// says which coroutine resumes. At its end the frame destroys itself.
class detached {
public:
  struct ends {
    int over = 0;
    int stopped = 0;
  };
  struct promise_type : counted_frame {
    template <class Awaitable> promise_type(Awaitable const&, ends& told) noexcept : told{told} {}
    detached get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept { ++told.over; }
    void unhandled_exception() noexcept { std::abort(); }
    std::coroutine_handle<> unhandled_stopped() noexcept {
      auto& at_the_end = told;
      std::coroutine_handle<promise_type>::from_promise(*this).destroy();
      ++at_the_end.stopped;
      return std::noop_coroutine();
    }
    ends& told;
  };
  template <class Awaitable> static detached await(Awaitable what, ends&) { (void)co_await std::move(what); }
};

// A coroutine type, and how its body awaits.
template <class Promise, class How = as_it_is> struct probe {
  using promise = Promise;
  template <class Awaitable> static probe_handle<Promise> await(Awaitable what, gpumem::outcome& told) {
    try {
      (void)co_await How{}(std::move(what));
      told = gpumem::outcome::granted;
    } catch (gpumem::acquire_error const& e) { told = e.reason(); }
  }
};

// All these coroutine types.
using probes = testing::Types<probe<plain_promise>, probe<erasing_promise>, probe<stoppable_promise>,
                              probe<plain_promise, wrapped>, probe<transforming_promise>>;
template <class Probe>
inline constexpr bool told_by_promise = std::is_same_v<typename Probe::promise, stoppable_promise>;

// Checks how a stop of `running` looks from outside; `told` was `before`.
template <class Probe>
void expect_stopped(probe_handle<typename Probe::promise> const& running, gpumem::outcome told,
                    gpumem::outcome before) {
  if constexpr (told_by_promise<Probe>) {
    EXPECT_EQ(running.promise().stops, 1);
    EXPECT_EQ(told, before);
    EXPECT_FALSE(running.done());
  } else {
    EXPECT_EQ(told, gpumem::outcome::stopped);
    EXPECT_TRUE(running.done());
  }
}

} // namespace test
