// Runs one pass on a session.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

module replay:replay_session.impl;

import gpumem;
import :pass;
import :progress;
import :replay_session;
import :streams;
import :thread_team;

namespace replay {

replay_session::replay_session(run_config const& what)
    : what_{what}, here_{what.where->device},
      team_{what.threads, [device = what.where->device](std::function<void()> const& member) {
              gpumem::device_guard const here{device};
              member();
            }} {
  plan const& operations = what.trace->operations;
  for (unsigned i = 0; i < what.threads; ++i) {
    sets_.emplace_back(what.where->device, operations.streams, what.chosen->foreign);
    states_.emplace_back(operations);
  }
}

pass_cost replay_session::run(std::string_view step, std::function<void(member)> const& body) {
  what_.shown->step(what_.trace->name + " over " + std::string(what_.resource) + ": " + std::string(step));
  std::uint64_t const calls_before = gpumem::driver_api::driver_calls();
  pass_cost cost;
  cost.nanoseconds = team_.run([&](unsigned i) { body({i, sets_[i].refs(), states_[i]}); });
  cost.driver_calls = gpumem::driver_api::driver_calls() - calls_before;
  check_fatal();
  return cost;
}

void replay_session::each_member(std::function<void(member)> const& visit) {
  for (unsigned i = 0; i < sets_.size(); ++i) visit({i, sets_[i].refs(), states_[i]});
}

void replay_session::synchronize() const {
  for (stream_set const& set : sets_) set.synchronize();
}

std::uint64_t replay_session::take_failures() {
  std::uint64_t failures = 0;
  for (pass_state& state : states_) failures += std::exchange(state.failures, 0);
  return failures;
}

void replay_session::check_fatal() const {
  for (pass_state const& state : states_) {
    if (!state.fatal) continue;
    throw std::runtime_error(what_.trace->name + " over " + std::string(what_.resource) + ": an allocation of " +
                             std::to_string(state.fatal->requested) +
                             " bytes failed: " + gpumem::to_string(state.fatal->reason) + " (driver code " +
                             std::to_string(static_cast<int>(state.fatal->code)) + ")");
  }
}

} // namespace replay
