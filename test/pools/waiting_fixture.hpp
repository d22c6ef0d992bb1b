// A fixture for tests of waiting for a pool's memory: streams, an executor that the test runs, and requests that record
// how they ended. Include it after `import gpumem;` and the support headers: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

inline constexpr std::size_t MiB = std::size_t{1} << 20;

class waiting_fixture : public simulated_test {
protected:
  void TearDown() override {
    EXPECT_FALSE(executor.run_one()) << "a posted work item was not run";
    auto const drawn = upstream.state().draws().size();
    EXPECT_TRUE(wait_for_releases(upstream.state(), drawn));
    EXPECT_TRUE(drawn > 0 || wait_for_device_bytes(before_)); // the library thread has no context in which to free
    simulated_test::TearDown();
  }

  // A coroutine that requests memory, keeps it, and records the outcome. It can be destroyed at any suspension.
  class request {
  public:
    template <class Pool>
    request(waiting_fixture& of, Pool pool, gpumem::stream& on, std::size_t bytes, std::stop_token token = {},
            bool begins = true, gpumem::acquire_options options = {})
        : body_{run(std::move(pool), on, bytes, resuming_on(of.executor, options), std::move(token))} {
      if (begins) begin();
    }
    template <class Pool>
    request(waiting_fixture& of, Pool pool, gpumem::stream& on, std::size_t bytes, gpumem::acquire_options options)
        : request{of, std::move(pool), on, bytes, {}, true, options} {}
    ~request() { destroy(); }
    void begin() { running_.emplace(test::start(std::move(body_))); }
    void destroy() { running_.reset(); }
    std::optional<gpumem::outcome> ended() const { return ended_; }
    gpumem::allocation& block() { return block_; }

  private:
    static gpumem::acquire_options resuming_on(gpumem::executor& where, gpumem::acquire_options options) {
      options.resume_on = &where;
      return options;
    }
    // The pool's handle may be destroyed while the request waits.
    template <class Pool>
    gpumem::task<> run(Pool const& pool, gpumem::stream& on, std::size_t bytes, gpumem::acquire_options options,
                       std::stop_token token) {
      auto what = Pool{pool}.acquire(on, bytes, options, std::move(token));
      return run(std::move(what));
    }
    template <class Awaitable> gpumem::task<> run(Awaitable what) {
      try {
        block_ = co_await what;
        ended_ = gpumem::outcome::granted;
      } catch (gpumem::acquire_error const& e) { ended_ = e.reason(); } catch (gpumem::out_of_memory const& e) {
        ended_ = e.reason();
      }
    }

    std::optional<gpumem::outcome> ended_;
    gpumem::allocation block_;
    gpumem::task<> body_;
    std::optional<test::started> running_;
  };

  void run_all() {
    while (executor.run_one()) {}
  }
  // Runs posted items until `done`, while gpumem's own thread runs.
  template <class Done> void run_until(Done done) {
    wait_until([&] { return done() || (executor.run_one() && done()); });
  }
  // Waits until `done`, while gpumem's own thread runs and posted items do not.
  template <class Done> static void wait_until(Done done) {
    auto const end = gpumem::detail::sync::now() + longest_wait();
    while (!done()) {
      std::this_thread::yield();
      ASSERT_LT(gpumem::detail::sync::now(), end) << "timed out";
    }
  }
  // Returns after the library thread has done the passes that were due within its longest pause from now, and the
  // passes that these made due.
  static void let_the_library_thread_poll() {
    class mark final : public gpumem::detail::timer {
    public:
      void expire() noexcept override { passed = true; }
      std::atomic<bool> passed{false};
    };
    for (int i = 0; i < 3; ++i) {
      mark end;
      gpumem::detail::start_timer(end, gpumem::detail::sync::now() + std::chrono::milliseconds{2});
      while (!end.passed) std::this_thread::yield();
      gpumem::detail::cancel_timer(end); // its function may still be returning
    }
  }
  // Returns whether the stream would get `bytes` now.
  template <class Pool> static bool can_have(Pool& pool, cuda::stream_ref on, std::size_t bytes) {
    auto const got = pool.try_allocate(on, bytes);
    if (got) pool.deallocate(on, *got, bytes);
    return got.has_value();
  }

  // Enqueues device work on a block, with the simulated device's checker informed; free_used() ends the block.
  void use(gpumem::allocation& block) {
    gpumem::simulator::detail::allocated(owner_, block.stream().get(), false, block.data(), block.bytes());
    gpumem::simulator::work(block.stream(), {gpumem::simulator::write(block.data(), block.bytes())});
  }
  void free_used(gpumem::allocation& block) {
    gpumem::simulator::detail::freed(owner_, block.stream().get(), false, block.data(), block.bytes());
    block.reset();
  }
  // Returns the bytes of the device that were in use before the test.
  std::size_t before() const { return before_; }

  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  recording_upstream upstream;
  test::manual_executor executor;

private:
  std::size_t before_ = device_bytes();
  std::uint64_t owner_ = gpumem::simulator::detail::new_owner();
};

} // namespace gpumem_test
