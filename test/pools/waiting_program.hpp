// A random program of tasks under memory pressure: they request memory, hold and free it, and are stopped and
// destroyed. Meanwhile other requests do not wait, limits change, and the device lags behind. Include it after
// queue_model.hpp and chance.hpp: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

namespace simulator = gpumem::simulator;
using gpumem::outcome;
using gpumem::reuse_policy;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;
using tally = std::map<std::string, std::uint64_t>;

inline constexpr std::size_t MiB = std::size_t{1} << 20;

// The settings that a seed chooses at first.
struct form {
  reuse_policy how;
  bool pages;  // sizes of whole pages, which do not fragment
  bool prompt; // the device works at once, so that only bytes decide
};
inline constexpr form forms[] = {
    {reuse_policy::wait, true, true},        {reuse_policy::wait, true, true},      {reuse_policy::wait, true, false},
    {reuse_policy::completed, true, false},  {reuse_policy::ordered, true, false},  {reuse_policy::wait, false, false},
    {reuse_policy::completed, false, false}, {reuse_policy::ordered, false, false},
};

class waiting_program {
public:
  // `alone`: gpumem's own thread does not run in between, so that it is known when a request got its turn.
  waiting_program(std::uint64_t seed, std::vector<gpumem::stream>& streams, bool alone, tally& counts, bool tells)
      : random_{seed}, form_{form_of(seed)}, streams_{streams}, alone_{alone}, counts_{counts}, tells_{tells} {}

  static form const& form_of(std::uint64_t seed) { return forms[seed % std::size(forms)]; }

  std::string const& run() {
    auto const steps = 20 + random_.below(60);
    for (std::uint64_t i = 0; i < steps && wrong_.empty(); ++i) {
      step();
      if (!form_.prompt) continue;
      let_all_complete();
      if (!closed_) line_.expect_nobody_waits_in_vain(memory());
    }
    if (wrong_.empty()) finish();
    counts_["overtakings"] += line_.overtakes();
    return wrong_;
  }

private:
  struct asked {
    waiting_request that;
    std::size_t lowest_limit;
  };

  std::size_t unit() const { return form_.pages ? 2 * MiB : 4096; }
  std::size_t some_limit() { return unit() * (6 + random_.below(11)); }
  std::size_t some_size() {
    auto const most = limit_ / unit() + 1;
    auto const units = random_.one_in(3) ? 1 + random_.below(most) : 1 + random_.below(3);
    return form_.pages ? units * unit() : units * unit() - random_.below(unit());
  }
  gpumem::stream& some_stream() { return streams_[random_.below(streams_.size())]; }
  memory_count memory() {
    auto const reserved = pool_.statistics().reserved;
    return {std::max(limit_, reserved), live_};
  }

  void wrong(std::string const& text) {
    if (wrong_.empty()) wrong_ = text;
  }
  void tell(char const* what, std::size_t bytes = 0) {
    ++counts_[what];
    if (tells_) std::printf("%s %zu\n", what, bytes);
  }

  void step() {
    switch (random_.below(16)) {
    case 0:
    case 1:
    case 2:
    case 3: return request_event();
    case 4:
    case 5:
    case 6: return resume_one();
    case 7:
    case 8:
    case 9: return free_one();
    case 10: return random_.one_in(2) ? stop_one() : destroy_one();
    case 11: return allocate();
    case 12: return random_.one_in(3) ? change_limit() : try_in_line();
    case 13: return let_device_run();
    case 14: return poll_again();
    case 15:
      if (!form_.pages && random_.one_in(4)) return refuse_upstream();
      [[fallthrough]];
    default: return random_.one_in(40) ? close() : random_.one_in(4) ? synchronize() : request_event();
    }
  }

  void request_event() {
    auto const bytes = some_size();
    auto const priority = random_.of({0, 0, 0, 0, 1, -1, 5});
    auto& one = *asked_.emplace_back(new asked{
        {pool_, some_stream(), bytes, priority, [this](waiting_request& called) { called_.push_back(&called); }},
        limit_});
    tell(one.that.open() ? "waits" : "ends at once", bytes);
    if (one.that.open()) line_.park(one.that, line_.empty()); // the first has tried already
    after(one);
    note_calls();
  }
  void resume_one() {
    auto const ready = those([](waiting_request& each) { return each.called(); });
    if (!ready.empty()) resume(*ready[random_.below(ready.size())]);
  }
  void resume(asked& one) {
    one.that.resume();
    if (one.that.open()) {
      tell("refused in its turn", one.that.bytes());
      line_.refuse(one.that);
    } else {
      line_.leave(one.that);
    }
    after(one);
    note_calls();
  }
  // Checks how the request has ended, if it has.
  void after(asked& one) {
    if (one.that.open()) return;
    auto const how = std::min(*one.that.ended(), outcome::exhausted);
    bool const may = how == outcome::granted || (how == outcome::stopped && one.that.stopped()) ||
                     (how == outcome::closed && closed_) || (how == outcome::exhausted && upstream_refuses_) ||
                     (how == outcome::too_large && one.that.bytes() > one.lowest_limit);
    static constexpr char const* names[]{"granted", "stopped", "", "closed", "too large", "exhausted"};
    tell(names[static_cast<std::size_t>(how)]);
    if (!may) wrong(std::string{"ended without need: "} + names[static_cast<std::size_t>(how)]);
    if (one.that.ends() != 1) wrong("ended more than once");
    if (how == outcome::granted) hold(std::move(one.that.block()));
    std::erase_if(asked_, [&](auto const& each) { return each.get() == &one; });
  }
  void hold(gpumem::allocation block) {
    live_ += block.bytes();
    if (random_.one_in(2)) simulator::work(block.stream(), {simulator::write(block.data(), block.bytes())});
    held_.push_back(std::move(block));
  }
  void free_one() {
    if (!held_.empty()) free(random_.below(held_.size()));
  }
  void free(std::size_t which) {
    std::swap(held_[which], held_.back());
    live_ -= held_.back().bytes();
    tell("frees", held_.back().bytes());
    held_.pop_back();
    note_calls();
  }
  void stop_one() {
    auto const open = those([](waiting_request& each) { return !each.stopped(); });
    if (open.empty()) return;
    auto& one = open[random_.below(open.size())]->that;
    if (!line_.has_turn(one)) line_.leave(one);
    tell(line_.has_turn(one) ? "stops in its turn" : "stops", one.bytes());
    one.stop();
    note_calls();
  }
  void destroy_one() {
    auto const open = those([](waiting_request&) { return true; });
    if (open.empty()) return;
    auto& one = *open[random_.below(open.size())];
    tell(line_.has_turn(one.that) ? "destroys in its turn" : "destroys", one.that.bytes());
    line_.leave(one.that);
    one.that.destroy();
    std::erase_if(asked_, [&](auto const& each) { return each.get() == &one; });
    note_calls();
  }
  // Allocates without waiting, past the waiting requests.
  void allocate() {
    auto const bytes = some_size();
    auto& on = some_stream();
    auto const before = memory();
    auto const got = pool_.try_allocate(on, bytes);
    if (!got) {
      line_.attempt_to_overtake_all();
      return tell(line_.empty() ? "gets nothing" : "gets nothing beside those that wait", bytes);
    }
    tell(line_.empty() ? "allocates" : "allocates beside those that wait", bytes);
    if (!line_.fits(bytes, before)) wrong("an allocation took what is set aside");
    line_.overtake_all();
    live_ += bytes;
    note_calls();
    live_ -= bytes;
    pool_.deallocate(on, *got, bytes);
    note_calls();
  }
  // Tries in line, without waiting, behind the waiting requests.
  void try_in_line() {
    auto got = pool_.acquire(some_stream(), some_size()).try_now();
    if (!got) return;
    if (!line_.empty()) wrong("a request that may not overtake has overtaken");
    hold(std::move(*got));
  }
  void change_limit() {
    if (closed_) return;
    limit_ = some_limit();
    highest_limit_ = std::max(highest_limit_, limit_);
    tell("sets the limit", limit_);
    for (auto& each : asked_) each->lowest_limit = std::min(each->lowest_limit, limit_);
    pool_.set_limit(limit_);
    note_calls();
    expect_all_told([this](waiting_request const& each) { return each.bytes() > limit_; });
  }
  void close() {
    tell("closes");
    closed_ = true;
    pool_.close();
    note_calls();
    expect_all_told([](waiting_request const&) { return true; });
  }
  void expect_all_told(auto that_cannot_be_met) {
    for (auto const& each : asked_) {
      if (that_cannot_be_met(each->that) && !each->that.called()) wrong("not told that it cannot be granted");
    }
  }
  // A request may end because of this after all memory is freed.
  void refuse_upstream() {
    tell("upstream has no more");
    simulator::fail_allocation(1);
    upstream_refuses_ = true;
  }
  void let_device_run() { simulator::step(1 + random_.below(4)); }
  void let_all_complete() {
    simulator::run_until_idle();
    gpumem::detail::sync::sleep_for(std::chrono::milliseconds{2});
    note_calls();
  }
  // Lets the library thread poll for completion.
  void poll_again() {
    gpumem::detail::sync::sleep_for(std::chrono::microseconds{20 + random_.below(2000)});
    note_calls();
  }

  // Lets the device and all requests that have a turn finish.
  void synchronize() {
    come_to_rest(false);
    if (form_.pages && !closed_) line_.expect_nobody_waits_in_vain(memory());
  }
  void finish() {
    come_to_rest(true);
    if (!asked_.empty()) wrong("left waiting at the end");
    auto const left = pool_.statistics();
    if (left.live + left.allocated > 0) wrong("memory was lost");
    if (left.waiting > 0) wrong("counted as waiting");
    if (left.peak_reserved > highest_limit_) wrong("more than the limit");
    auto& engine = static_cast<gpumem::detail::pool_state*>(pool_.services().state)->engine();
    if (!engine.is_consistent()) wrong("inconsistent");
    for (auto const& each : simulator::take_findings()) wrong(each.text);
    simulator::fail_allocation(0); // so that the next program's do not fail
  }
  void come_to_rest(bool frees) {
    for (int quiet = 0, round = 0; quiet < 3 && wrong_.empty(); ++quiet) {
      if (++round == 1000) return wrong("the program does not become idle");
      while (frees && !held_.empty()) free(0);
      for (auto* const each : those([](waiting_request& one) { return one.called(); })) {
        resume(*each);
        quiet = 0;
      }
      let_all_complete();
    }
  }

  // Records the requests that the last step gave a turn, in the order of their turns.
  void note_calls() {
    if (called_.empty()) return;
    auto const now = memory();
    for (auto* const each : std::exchange(called_, {})) {
      auto const* const at = line_.find(*each);
      if (!at) continue; // it was destroyed or stopped
      bool const ends = closed_ || each->bytes() > limit_;
      if (tells_) std::printf("  calls %zu\n", each->bytes());
      if (ends) {
        line_.call_to_end(*each);
      } else {
        line_.call(*each, now, form_.pages);
      }
    }
  }
  std::vector<asked*> those(auto which) {
    std::vector<asked*> found;
    for (auto const& each : asked_) {
      if (which(each->that)) found.push_back(each.get());
    }
    return found;
  }

  random_source random_;
  form const form_;
  std::vector<gpumem::stream>& streams_;
  bool const alone_;
  tally& counts_;
  bool const tells_;
  std::string wrong_;
  unsigned const max_overtakes_ = random_.of({0u, 1u, 2u, 4u, 16u});
  std::size_t limit_ = some_limit(), highest_limit_ = limit_, live_ = 0;
  bool closed_ = false, upstream_refuses_ = false;
  pool pool_{
      gpumem::device{0},
      {.limit = limit_, .effort = 1, .pages = form_.pages, .cross_stream = form_.how, .max_overtakes = max_overtakes_}};
  queue_model line_{max_overtakes_, [this](char const* text) {
                      if (alone_) wrong(text);
                    }};
  std::vector<waiting_request*> called_;
  std::vector<std::unique_ptr<asked>> asked_;
  std::vector<gpumem::allocation> held_;
};

} // namespace gpumem_test
