// A stop source for tests under a schedule. The standard one cannot be used: the destructor of its callback waits in a
// way that the schedule does not see. Include it after `import gpumem;` and after <algorithm>, <memory>, <mutex>,
// <utility> and <vector>: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

class scheduled_stop_source {
  struct callback_base {
    virtual void call() noexcept = 0;

  protected:
    ~callback_base() = default;
  };

  struct shared_state {
    gpumem::detail::sync::mutex guard;
    gpumem::detail::sync::condition returned;
    std::vector<callback_base*> waiting;
    callback_base* running = nullptr;
    unsigned runner = 0; // index of the thread that calls it
    bool requested = false;
  };

public:
  class token {
  public:
    explicit token(std::shared_ptr<shared_state> state) noexcept : state_{std::move(state)} {}
    bool stop_possible() const noexcept { return true; }
    bool stop_requested() const noexcept {
      gpumem::detail::sync::lock const held{state_->guard};
      return state_->requested;
    }
    bool operator==(token const&) const = default;

    template <class Function> class callback_type final : callback_base {
    public:
      callback_type(token of, Function function) : state_{std::move(of.state_)}, function_{std::move(function)} {
        {
          gpumem::detail::sync::lock const held{state_->guard};
          if (!state_->requested) {
            state_->waiting.push_back(this);
            return;
          }
        }
        function_();
      }
      callback_type(callback_type&&) = delete;
      ~callback_type() {
        gpumem::detail::sync::lock held{state_->guard};
        std::erase(state_->waiting, static_cast<callback_base*>(this));
        if (state_->runner == gpumem::detail::sync::thread_index()) return; // the callback destroys itself
        while (state_->running == static_cast<callback_base*>(this)) state_->returned.wait(state_->guard);
      }

    private:
      void call() noexcept override { function_(); }
      std::shared_ptr<shared_state> state_;
      Function function_;
    };

  private:
    std::shared_ptr<shared_state> state_;
  };

  token get_token() const noexcept { return token{state_}; }

  void request_stop() {
    auto const state = state_; // a callback may destroy the source
    gpumem::detail::sync::lock held{state->guard};
    if (std::exchange(state->requested, true)) return;
    state->runner = gpumem::detail::sync::thread_index();
    while (!state->waiting.empty()) {
      state->running = state->waiting.back();
      state->waiting.pop_back();
      held.unlock();
      state->running->call();
      held.lock();
      state->running = nullptr;
      state->returned.notify_all();
    }
  }

private:
  std::shared_ptr<shared_state> state_ = std::make_shared<shared_state>();
};

} // namespace test
