// A coroutine that requests memory from a pool, with an executor of its own, so that a test sees when it is to resume
// and decides when it does. Include it after `import gpumem;` and coroutine_probes.hpp: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

class waiting_request final : private gpumem::executor {
public:
  // `told` is called when the request is to resume, under a lock of gpumem.
  template <class Pool>
  waiting_request(Pool& pool, gpumem::stream& on, std::size_t bytes, int priority = 0,
                  std::function<void(waiting_request&)> told = {})
      : bytes_{bytes}, priority_{priority}, told_{std::move(told)} {
    running_.emplace(test::start(run(pool, on)));
  }
  waiting_request(waiting_request const&) = delete;
  waiting_request& operator=(waiting_request const&) = delete;
  ~waiting_request() { destroy(); }

  std::size_t bytes() const { return bytes_; }
  int priority() const { return priority_; }
  // Returns whether the request has neither ended nor been destroyed.
  bool open() const { return running_ && ends_ == 0; }
  // Returns whether it is to resume: its turn has come, or it was stopped.
  bool called() const { return item_ != nullptr; }
  void resume() { std::exchange(item_, nullptr)->resume(); }
  void stop() { source_.request_stop(); }
  bool stopped() const { return source_.stop_requested(); }
  void destroy() { running_.reset(); }
  // The outcome, and how many times it ended.
  std::optional<gpumem::outcome> ended() const { return ended_; }
  unsigned ends() const { return ends_; }
  gpumem::allocation& block() { return block_; }

private:
  void post(gpumem::extend::work_item& item) noexcept override {
    item_ = &item;
    if (told_) told_(*this);
  }
  bool try_cancel(gpumem::extend::work_item& item) noexcept override {
    if (item_ != &item) return false;
    item_ = nullptr;
    return true;
  }

  template <class Pool> gpumem::task<> run(Pool& pool, gpumem::stream& on) {
    gpumem::acquire_options const how{.resume_on = this, .priority = priority_};
    try {
      block_ = co_await pool.acquire(on, bytes_, how, source_.get_token());
      end(gpumem::outcome::granted);
    } catch (gpumem::acquire_error const& e) { end(e.reason()); } catch (gpumem::out_of_memory const& e) {
      end(e.reason());
    }
  }
  void end(gpumem::outcome how) {
    ended_ = how;
    ++ends_;
  }

  std::size_t const bytes_;
  int const priority_;
  std::function<void(waiting_request&)> const told_;
  gpumem::extend::work_item* item_ = nullptr;
  std::optional<gpumem::outcome> ended_;
  unsigned ends_ = 0;
  gpumem::allocation block_;
  std::stop_source source_;
  std::optional<test::started> running_;
};

} // namespace gpumem_test
