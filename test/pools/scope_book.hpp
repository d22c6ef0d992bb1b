// The test's records of the requests of many scopes, and checks of their promised order. Used under a schedule, where
// one thread runs at a time, so it has no lock. Include it after `import gpumem;`, <optional> and the standard headers
// of scope_workers.hpp: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

// A request as the member that made it sees it.
struct scope_request {
  int priority = 0;
  std::uint64_t least_age = 0, most_age = UINT64_MAX; // bounds of its age
  bool scoped = false;
  bool may_give_way = false;
  gpumem::detail::sync::time_point deadline = gpumem::detail::sync::time_point::max();

  bool open = false;
  bool waits = false; // its member has seen it suspended and not resumed since
  bool had_older = false;
  std::uint64_t begun = 0, seen_at = 0; // counts of begun requests
  unsigned overtaken = 0;
};

// The events that may happen in one run.
struct scope_form {
  bool weights = false; // memory allocated outside a scope is held all the time
  bool marks = false;   // scopes that hold memory declare that they wait for something else
  bool apart = false;   // memory in use keeps free memory beside it for the streams that freed it
  bool closes = false;
  unsigned max_overtakes = 0;
};

class scope_book {
public:
  using tally = std::map<std::string, std::uint64_t>;

  // `shows`: prints each event.
  scope_book(scope_form form, std::size_t members, bool shows) : form_{form}, places_(members), shows_{shows} {}

  // Work with that age begins, or has ended.
  void begin_work(std::size_t member, int priority, std::uint64_t age) {
    places_[member].work = {priority, age};
    for (auto& each : places_) each.request.had_older |= each.request.open && goes_first({priority, age}, each.request);
  }
  void end_work(std::size_t member) {
    places_[member].work.reset();
    places_[member].request.open = false; // the request may have been destroyed
    places_[member].stops = false;
  }

  void begin(std::size_t member, scope_request const& what, std::size_t bytes) {
    auto& one = places_[member].request;
    if (one.open) wrong("one member made two requests at once");
    one = what;
    one.open = true;
    one.begun = ++begun_;
    for (auto const& each : places_) {
      one.had_older |= each.work && goes_first(*each.work, one);
      one.had_older |= &each.request != &one && each.request.open && !goes_after(each.request, one);
    }
    for (auto& each : places_) {
      each.request.had_older |= each.request.open && &each.request != &one && !goes_after(one, each.request);
    }
    tell(member, "asks", bytes);
  }
  // The request is suspended, and its executor has nothing to run.
  void see_waiting(std::size_t member) {
    auto& one = places_[member].request;
    if (!one.open || one.waits) return;
    if (!one.scoped) one.most_age = std::min(one.most_age, gpumem::extend::holder::next_age());
    one.waits = true;
    if (one.seen_at == 0) one.seen_at = begun_;
    tell(member, "waits");
  }
  // The executor has the request to resume.
  void see_called(std::size_t member) { places_[member].request.waits = false; }

  void end(std::size_t member, gpumem::outcome how) {
    auto& one = places_[member].request;
    if (!one.open) return wrong("a request ended twice");
    one.open = false;
    tell(member, name_of(how));
    if (!may_end(member, how)) wrong(std::string{"ended without need: "} + name_of(how));
    if (how != gpumem::outcome::granted) return; // it may have left the line before the test sees it
    if (one.overtaken > form_.max_overtakes + places_.size() - 1) wrong("overtaken too often");
    count_overtaking(member);
  }

  // Notes that the request is going to be stopped.
  void note_stop(std::size_t member) { places_[member].stops = true; }
  void note_close() { closed_ = true; }
  bool closed() const { return closed_; }

  void tell(std::size_t member, char const* what, std::size_t bytes = 0) {
    ++tally_[what];
    if (shows_) std::printf("%zu %s %zu\n", member, what, bytes);
  }
  tally const& told() const { return tally_; }
  void wrong(std::string const& text) {
    if (wrong_.empty()) wrong_ = text;
  }
  std::string const& wrong() const { return wrong_; }

private:
  struct work {
    int priority;
    std::uint64_t age;
  };
  struct place {
    std::optional<struct work> work;
    scope_request request;
    bool stops = false;
  };

  static bool goes_first(work const& one, scope_request const& other) {
    return one.priority > other.priority || (one.priority == other.priority && one.age < other.most_age);
  }
  // Returns whether `one` certainly goes after `other`.
  static bool goes_after(scope_request const& one, scope_request const& other) {
    return one.priority < other.priority || (one.priority == other.priority && one.least_age > other.most_age);
  }

  bool may_end(std::size_t member, gpumem::outcome how) const {
    auto const& [work, one, stops] = places_[member];
    switch (how) {
    case gpumem::outcome::granted: return true;
    case gpumem::outcome::stopped: return stops;
    case gpumem::outcome::deadline: return gpumem::detail::sync::now() >= one.deadline;
    case gpumem::outcome::closed: return closed_;
    case gpumem::outcome::preempted: return one.may_give_way && one.had_older;
    case gpumem::outcome::stalled:
      return !form_.weights && (form_.marks || form_.apart || (one.scoped && !one.may_give_way));
    default: return false;
    }
  }
  static char const* name_of(gpumem::outcome how) {
    switch (how) {
    case gpumem::outcome::granted: return "granted";
    case gpumem::outcome::stopped: return "stopped";
    case gpumem::outcome::deadline: return "late";
    case gpumem::outcome::closed: return "closed";
    case gpumem::outcome::preempted: return "preempted";
    case gpumem::outcome::stalled: return "stalled";
    default: return "exhausted";
    }
  }

  // Another request may get a turn between the time when the pool gives one and the time when the test sees it.
  void count_overtaking(std::size_t member) {
    auto const& by = places_[member].request;
    bool counted = false;
    for (auto& each : places_) {
      auto& one = each.request;
      if (!one.open || !one.waits || by.begun <= one.seen_at || !goes_after(by, one)) continue;
      counted = true;
      ++one.overtaken;
    }
    if (counted) tell(member, "overtakes");
  }

  scope_form const form_;
  std::vector<place> places_;
  bool const shows_;
  std::uint64_t begun_ = 0;
  bool closed_ = false;
  tally tally_;
  std::string wrong_;
};

} // namespace gpumem_test
