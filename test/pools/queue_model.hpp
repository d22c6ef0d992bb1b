// What a test knows of the requests that wait for a pool's memory, and what their order promises. Include it after
// waiting_request.hpp: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

// Memory as the test counts it: of all that there may be, what is not live and not set aside.
struct memory_count {
  std::size_t most = 0; // the limit, or what is reserved where that is more
  std::size_t live = 0;
};

class queue_model {
public:
  struct place {
    waiting_request* that;
    std::uint64_t arrival;
    unsigned overtaken = 0;
    unsigned attempts =
        0; // of what may count as having overtaken it: allocations that got nothing, turns beside its own
    unsigned turns_before = 0;
    bool turn = false;
    bool refused = false;     // in its turn: it lacked more than bytes
    bool was_refused = false; // at any time
  };

  queue_model(unsigned max_overtakes, std::function<void(char const*)> wrong)
      : most_{max_overtakes}, wrong_{std::move(wrong)} {}

  bool empty() const { return row_.empty(); }
  void park(waiting_request& one, bool refused) {
    place const last{.that = &one, .arrival = ++arrivals_, .refused = refused, .was_refused = refused};
    row_.insert(std::ranges::find_if(row_, [&](place const& each) { return each.that->priority() < one.priority(); }),
                last);
  }
  // It is decided, or gone.
  void leave(waiting_request const& one) {
    end_turn(one);
    std::erase_if(row_, [&](place const& each) { return each.that == &one; });
  }
  // It was refused in its turn, and waits again.
  void refuse(waiting_request const& one) {
    end_turn(one);
    auto* const at = find(one);
    if (!at) return;
    at->refused = at->was_refused = true;
    at->attempts += turns_ - at->turns_before;
  }
  place* find(waiting_request const& one) {
    auto const at = std::ranges::find(row_, &one, &place::that);
    return at == row_.end() ? nullptr : &*at;
  }
  bool has_turn(waiting_request const& one) {
    auto const* const at = find(one);
    return at && at->turn;
  }

  // Its turn has come. `bytes_decide`: nothing else does, but for those that were refused.
  void call(waiting_request& one, memory_count const& memory, bool bytes_decide) {
    auto const at = std::ranges::find(row_, &one, &place::that);
    if (at == row_.end() || at->turn) return wrong_("called without need");
    unsigned passed = 0;
    for (auto& each : std::ranges::subrange(row_.begin(), at)) {
      if (each.turn) continue;
      ++passed;
      if (++each.overtaken > most_) wrong_("overtaken too often");
      if (bytes_decide && !each.refused && fits(each.that->bytes(), memory))
        wrong_("overtook one for which there is memory");
    }
    if (passed > most_) wrong_("overtook too many");
    overtakes_ += passed > 0;
    give_turn(*at);
  }
  // To be told that it cannot be met: it overtakes nothing.
  void call_to_end(waiting_request const& one) { give_turn(*find(one)); }
  // By an allocation that does not wait.
  void overtake_all() {
    for (auto& each : row_) {
      if (!each.turn && ++each.overtaken > most_) wrong_("overtaken too often by allocations that do not wait");
    }
  }
  // One that may count as if it had.
  void attempt_to_overtake_all() {
    for (auto& each : row_) each.attempts += !each.turn;
  }
  // Where nothing but bytes decides, each that may have a turn has it.
  void expect_nobody_waits_in_vain(memory_count const& memory) const {
    unsigned passed = 0;
    auto const held_up = [this](place const& each) { return each.overtaken + each.attempts >= most_; };
    if (std::ranges::any_of(row_, [&](place const& each) { return each.turn && each.was_refused && held_up(each); })) {
      return; // it has its turn alone
    }
    for (auto const& each : row_) {
      if (each.turn) continue;
      if (fits(each.that->bytes(), memory)) return wrong_("left waiting though there is memory");
      if (held_up(each) || ++passed > most_) return;
    }
  }
  std::uint64_t overtakes() const { return overtakes_; }

  bool fits(std::size_t bytes, memory_count const& memory) const {
    return bytes <= memory.most - std::min(memory.most, memory.live + set_aside_);
  }

private:
  void give_turn(place& one) {
    one.turn = true;
    one.turns_before = ++turns_;
    one.refused = false;
    set_aside_ += one.that->bytes();
  }
  void end_turn(waiting_request const& one) {
    auto* const at = find(one);
    if (at && std::exchange(at->turn, false)) set_aside_ -= one.bytes();
  }

  unsigned const most_;
  std::function<void(char const*)> const wrong_;
  std::vector<place> row_; // in the order in which they are to be served
  std::uint64_t arrivals_ = 0, overtakes_ = 0;
  unsigned turns_ = 0;
  std::size_t set_aside_ = 0;
};

} // namespace gpumem_test
