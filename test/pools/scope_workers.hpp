// Random workers: each does work that gets its memory through a scope. The work is preempted, waits elsewhere, is
// stopped, late or destroyed at random. Include it after scope_book.hpp, chance.hpp, coroutine_probes.hpp and
// scheduled_stop_source.hpp: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

// Runs work items on the thread that waits for it.
class member_executor final : public gpumem::executor {
public:
  member_executor(scope_book& book, std::size_t member) : book_{book}, member_{member} {}

  void post(gpumem::extend::work_item& item) noexcept override {
    gpumem::detail::sync::lock const held{mutex_};
    queue_.push(item);
    book_.see_called(member_);
    wake_.notify_all();
  }
  bool try_cancel(gpumem::extend::work_item& item) noexcept override {
    gpumem::detail::sync::lock const held{mutex_};
    return queue_.remove(item);
  }

  template <class Done> void run_until(Done done) {
    while (!done()) {
      gpumem::detail::sync::lock held{mutex_};
      while (queue_.empty()) {
        book_.see_waiting(member_);
        wake_.wait(mutex_);
      }
      auto* const item = queue_.pop();
      held.unlock();
      item->resume();
    }
  }
  bool run_one() {
    gpumem::detail::sync::lock held{mutex_};
    if (queue_.empty()) book_.see_waiting(member_);
    auto* const item = queue_.pop();
    held.unlock();
    if (item) item->resume();
    return item != nullptr;
  }

private:
  scope_book& book_;
  std::size_t const member_;
  gpumem::detail::sync::mutex mutex_;
  gpumem::detail::sync::condition wake_;
  gpumem::extend::work_queue queue_;
};

template <class Pool> class scope_member {
  using scope = gpumem::scope<Pool>;

public:
  // Each work requests at most `most` units. `others`: all members, some of which this one stops.
  scope_member(Pool pool, std::size_t unit, std::size_t most, std::vector<gpumem::stream>& streams,
               scope_form const& form, scope_book& book, std::vector<std::unique_ptr<scope_member>>& others,
               std::uint64_t seed)
      : pool_{std::move(pool)}, unit_{unit}, most_{most}, streams_{streams}, form_{form}, book_{book}, others_{others},
        self_{others.size()}, random_{seed * 16 + self_}, executor_{book, self_} {}

  void run(int works) {
    for (int i = 0; i < works; ++i) {
      one_work();
      if (form_.closes && self_ == 0 && i == works - 2) close();
    }
  }

private:
  // The bytes and the stream that one worker requests.
  struct plan {
    std::array<std::size_t, 3> parts{};
    gpumem::stream* on = nullptr;
    int priority = 0;
    bool stoppable = false, hurries = false;
  };

  plan some_plan() {
    plan one;
    auto const count = 1 + random_.below(one.parts.size());
    auto left = most_ - random_.below(most_ - count + 1) / 2;
    for (std::size_t i = 0; i < count; ++i) {
      auto const units = (left + count - i - 1) / (count - i); // the smallest last, so that it fits
      one.parts.at(i) = unit_ * units;
      left -= units;
    }
    one.on = &streams_[random_.below(streams_.size())];
    one.priority = random_.of({0, 0, 0, 0, 1, 2});
    one.stoppable = random_.one_in(4);
    one.hurries = random_.one_in(6);
    return one;
  }

  // Runs one work until it ends or is destroyed.
  void one_work() {
    stop_source_.emplace();
    bool ended = false;
    auto const whole = [&]() -> gpumem::task<> {
      try {
        co_await some_work();
      } catch (gpumem::acquire_error const&) {} // the book has recorded the reason
      ended = true;
    };
    {
      auto const running = test::start(whole());
      if (random_.one_in(6)) {
        for (auto left = random_.below(6); left > 0 && !ended; --left) {
          executor_.run_one();
          pause();
        }
        book_.tell(self_, ended ? "ends before it is destroyed" : "is destroyed");
      } else {
        executor_.run_until([&] { return ended; });
      }
    }
    book_.end_work(self_);
    stop_source_.reset();
    pause();
    stop_another();
  }

  gpumem::task<> some_work() {
    auto const what = some_plan();
    if (form_.weights) return random_.one_in(8) ? plain(what) : rolled_back(what);
    switch (random_.below(8)) {
    case 0:
    case 1: return plain(what);
    case 2: return marked(what);
    case 3:
    case 4: return held_on_to(what);
    default: return rolled_back(what);
    }
  }

  gpumem::task<> plain(plan what) {
    auto const age = gpumem::extend::holder::next_age();
    auto const block = co_await ask(pool_, what, what.parts[0], {.priority = what.priority, .least_age = age});
    pause();
  }
  // Work that declares a wait elsewhere, and waits for no memory while it does.
  gpumem::task<> marked(plan what) {
    scope work = begin(what, "marked");
    auto const block = co_await ask(work, what, what.parts[0], of(work, false));
    if (form_.marks) {
      auto const mark = work.waiting_elsewhere();
      book_.tell(self_, "waits elsewhere");
      pause();
      stop_another();
      pause();
    }
    pause();
  }
  gpumem::task<> held_on_to(plan what) {
    scope work = begin(what, "held on to");
    co_await parts(work, what, false);
    if (work.held() > 0) book_.wrong("a scope still counts freed memory");
  }
  gpumem::task<> rolled_back(plan what) {
    scope work = begin(what, "rolled back");
    auto const undo = [&] {
      book_.tell(self_, "rolls back");
      if (work.held() > 0) book_.wrong("work is rolled back before it has freed what it holds");
      pause();
    };
    co_await gpumem::with_retry(work, [&] { return parts(work, what, true); }, undo, &executor_);
    if (work.held() > 0) book_.wrong("a scope still counts freed memory");
  }
  gpumem::task<> parts(scope work, plan what, bool may_give_way) {
    std::array<gpumem::allocation, 3> held;
    for (std::size_t i = 0; i < held.size() && what.parts[i] > 0; ++i) {
      held[i] = co_await ask(work, what, what.parts[i], of(work, may_give_way));
      gpumem::simulator::work(*what.on, {gpumem::simulator::write(held[i].data(), held[i].bytes())});
      pause();
    }
  }

  scope begin(plan const& what, char const* name) {
    scope work{pool_, name, {.priority = what.priority}};
    book_.begin_work(self_, what.priority, work.as_holder().age());
    return work;
  }
  static scope_request of(scope const& work, bool may_give_way) {
    auto const& holder = work.as_holder();
    return {holder.priority(), holder.age(), holder.age(), true, may_give_way};
  }

  template <class From>
  gpumem::task<gpumem::allocation> ask(From& from, plan const& what, std::size_t bytes, scope_request request) {
    gpumem::acquire_options how{.resume_on = &executor_, .priority = request.priority};
    if (what.hurries) how.deadline = gpumem::detail::sync::now() + std::chrono::microseconds{random_.below(40)};
    request.deadline = how.deadline;
    book_.begin(self_, request, bytes);
    auto ended = gpumem::outcome::granted;
    try {
      auto block = what.stoppable ? co_await from.acquire(*what.on, bytes, how, stop_source_->get_token())
                                  : co_await from.acquire(*what.on, bytes, how);
      book_.end(self_, ended);
      co_return block;
    } catch (gpumem::acquire_error const& e) { ended = e.reason(); } catch (gpumem::out_of_memory const& e) {
      ended = e.reason();
    }
    book_.end(self_, ended);
    throw gpumem::acquire_error{gpumem::failure{ended, 0, bytes}};
  }

  void pause() {
    for (auto times = random_.below(20); times > 0; --times) gpumem::detail::sync::schedule_point();
  }
  void stop_another() {
    auto& other = *others_[random_.below(others_.size())];
    if (!other.stop_source_ || !random_.one_in(2)) return;
    book_.note_stop(other.self_);
    auto source = *other.stop_source_;
    source.request_stop();
  }
  void close() {
    book_.note_close();
    pool_.close();
  }

  Pool pool_;
  std::size_t const unit_, most_;
  std::vector<gpumem::stream>& streams_;
  scope_form const form_;
  scope_book& book_;
  std::vector<std::unique_ptr<scope_member>>& others_;
  std::size_t const self_;
  random_source random_;
  member_executor executor_;
  std::optional<test::scheduled_stop_source> stop_source_;
};

} // namespace gpumem_test
