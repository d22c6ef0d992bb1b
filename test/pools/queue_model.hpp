// A model of the queue of requests that wait for a pool's memory, and of the promises of their order. Include it after
// waiting_request.hpp: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

// Memory as the test counts it: free are the bytes that are neither live nor set aside.
struct memory_count {
  std::size_t most = 0; // the limit, or the reserved bytes if these are more
  std::size_t live = 0;
};

class queue_model {
public:
  struct place {
    waiting_request* that;
    std::uint64_t arrival;
    unsigned overtaken = 0;
    unsigned attempts = 0; // possible overtakings: failed allocations, and turns of other requests during its own
    unsigned turns_before = 0;
    bool turn = false;
    bool refused = false;     // during its turn: more than bytes was missing
    bool was_refused = false; // refused at any time
  };

  queue_model(unsigned max_overtakes, std::function<void(char const*)> wrong)
      : most_{max_overtakes}, wrong_{std::move(wrong)} {}

  bool empty() const { return row_.empty(); }
  void park(waiting_request& one, bool refused) {
    place const last{.that = &one, .arrival = ++arrivals_, .refused = refused, .was_refused = refused};
    row_.insert(std::ranges::find_if(row_, [&](place const& each) { return each.that->priority() < one.priority(); }),
                last);
  }
  // Removes a request that has ended or was destroyed.
  void leave(waiting_request const& one) {
    end_turn(one);
    std::erase_if(row_, [&](place const& each) { return each.that == &one; });
  }
  // Returns a request to the line that was refused during its turn.
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

  // Gives a turn to the request. `bytes_decide`: only bytes decide, except for refused requests.
  void call(waiting_request& one, memory_count const& memory, bool bytes_decide) {
    auto const at = std::ranges::find(row_, &one, &place::that);
    if (at == row_.end() || at->turn) return wrong_("got a turn without need");
    unsigned passed = 0;
    for (auto& each : std::ranges::subrange(row_.begin(), at)) {
      if (each.turn) continue;
      ++passed;
      if (++each.overtaken > most_) wrong_("overtaken too often");
      if (bytes_decide && !each.refused && fits(each.that->bytes(), memory))
        wrong_("overtook a request for which there is memory");
    }
    if (passed > most_) wrong_("overtook too many requests");
    overtakes_ += passed > 0;
    give_turn(*at);
  }
  // Gives it a turn to be told that it cannot be granted: it overtakes no request.
  void call_to_end(waiting_request const& one) { give_turn(*find(one)); }
  // An allocation that does not wait overtakes all.
  void overtake_all() {
    for (auto& each : row_) {
      if (!each.turn && ++each.overtaken > most_) wrong_("overtaken too often by allocations that do not wait");
    }
  }
  // A failed allocation, which may count as overtaking.
  void attempt_to_overtake_all() {
    for (auto& each : row_) each.attempts += !each.turn;
  }
  // Expects that each request that may have a turn has one, if only bytes decide.
  void expect_nobody_waits_in_vain(memory_count const& memory) const {
    unsigned passed = 0;
    auto const held_up = [this](place const& each) { return each.overtaken + each.attempts >= most_; };
    if (std::ranges::any_of(row_, [&](place const& each) { return each.turn && each.was_refused && held_up(each); })) {
      return; // it has the only turn
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
  std::vector<place> row_; // in the order of service
  std::uint64_t arrivals_ = 0, overtakes_ = 0;
  unsigned turns_ = 0;
  std::size_t set_aside_ = 0;
};

} // namespace gpumem_test
