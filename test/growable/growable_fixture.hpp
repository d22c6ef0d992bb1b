// A fixture for tests of buffers that grow: two streams, work on bytes of a buffer, and requests that record how they
// ended. Include it after `import gpumem.growable;` and the support headers: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

class growable_fixture : public waiting_fixture {
protected:
  using pool = gpumem::pool_resource<gpumem::cuda_resource>;
  using buffer = gpumem::growable_buffer;
  using outcome = gpumem::outcome;
  static constexpr std::size_t GiB = 1024 * MiB;

  static bool is_consistent(pool& of) {
    return static_cast<gpumem::detail::pool_state*>(of.services().state)->engine().is_consistent();
  }
  static std::byte* at(buffer const& of, std::size_t offset) { return static_cast<std::byte*>(of.data()) + offset; }
  // Enqueues work that writes to the bytes. The simulated device reports it if a page is not mapped when it runs, or if
  // one is unmapped before the host has seen the work complete.
  static void write(gpumem::stream& on, buffer const& to, std::size_t offset, std::size_t bytes) {
    gpumem::simulator::work(on, {gpumem::simulator::write(at(to, offset), bytes)});
  }
  static outcome reason_of(gpumem::expected<void, gpumem::failure> const& got) {
    return got ? outcome::granted : got.error().reason;
  }
  static std::uint64_t calls(char const* name) { return gpumem::driver_api::driver_calls(name); }
  // Returns the text of the exception that the call throws.
  template <class Exception, class Call> static std::string text_of(Call call) {
    try {
      call();
    } catch (Exception const& thrown) { return thrown.what(); }
    ADD_FAILURE() << "nothing thrown";
    return {};
  }

  // A coroutine that awaits a growth, and records its outcome.
  class growth {
  public:
    template <class Awaitable> explicit growth(Awaitable what) : running_{test::start(run(std::move(what)))} {}
    std::optional<outcome> ended() const { return ended_; }
    void destroy() { running_.reset(); }

  private:
    template <class Awaitable> gpumem::task<> run(Awaitable what) {
      try {
        co_await what;
        ended_ = outcome::granted;
      } catch (gpumem::acquire_error const& e) { ended_ = e.reason(); } catch (gpumem::out_of_memory const& e) {
        ended_ = e.reason();
      }
    }
    std::optional<outcome> ended_;
    std::optional<test::started> running_;
  };
  gpumem::acquire_options here(gpumem::acquire_options options = {}) {
    options.resume_on = &executor;
    return options;
  }
  void run_until_ended(growth const& one) {
    run_until([&] {
      gpumem::simulator::run_until_idle();
      return one.ended().has_value();
    });
  }
};

} // namespace gpumem_test
