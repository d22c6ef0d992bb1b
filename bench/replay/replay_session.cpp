// Chooses a device, makes streams, starts and ends threads, runs a pass, and draws the progress line.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <gpumem/simulator.hpp>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
module replay:replay_session.impl;
import gpumem;
import :replay_session;
import :options;
import :pass;

namespace replay {

progress::progress(std::size_t steps, std::FILE* terminal)
    : terminal_{terminal != nullptr && isatty(fileno(terminal)) != 0 ? terminal : nullptr}, steps_{steps} {}

progress::~progress() {
  if (terminal_ != nullptr && width_ != 0) show("");
}

void progress::step(std::string_view what) {
  std::size_t const percent = std::min<std::size_t>(begun_++ * 100 / std::max<std::size_t>(steps_, 1), 99);
  if (terminal_ != nullptr) show(std::to_string(percent) + "% " + std::string(what));
}

void progress::show(std::string const& line) {
  std::string const blanks(width_ > line.size() ? width_ - line.size() : 0, ' ');
  std::fprintf(terminal_, "\r%s%s\r%s", line.c_str(), blanks.c_str(), line.c_str());
  std::fflush(terminal_);
  width_ = line.size();
}

namespace detail {

bool serve_simulated(device_choice choice) {
  gpumem::simulator::options const how{.mode = gpumem::simulator::stepping::immediate};
  switch (choice) {
  case device_choice::simulated: gpumem::simulator::load(how); return true;
  case device_choice::automatic: return gpumem::simulator::auto_load(how);
  case device_choice::cuda: return false;
  }
  return false;
}

std::string device_name(gpumem::device device) {
  CUdevice handle{};
  std::array<char, 256> name{};
  gpumem::driver_api::check(gpumem::driver_api::driver().device_get(&handle, device.ordinal()), "find the device");
  gpumem::driver_api::check(
      gpumem::driver_api::driver().device_get_name(name.data(), static_cast<int>(name.size()), handle),
      "name the device");
  return name.data();
}

} // namespace detail

chosen_device choose_device(device_choice choice) {
  bool const simulated = detail::serve_simulated(choice);
  if (!gpumem::driver_api::driver_available()) {
    throw std::runtime_error("no CUDA driver found; --device simulated needs none");
  }
  gpumem::device const device{0};
  return {device, simulated, simulated ? "the simulated device" : detail::device_name(device)};
}

void accept_unordered(bool frees_elsewhere) {
  using kind = gpumem::simulator::finding_kind;
  for (auto const& found : gpumem::simulator::take_findings()) {
    if (found.kind == kind::unordered_free || (frees_elsewhere && found.kind == kind::unordered_reuse)) continue;
    throw std::runtime_error("the simulated device found: " + found.text);
  }
}

stream_set::stream_set(gpumem::device device, std::uint32_t count, bool foreign) {
  gpumem::device_guard const here{device};
  own_.reserve(foreign ? 0 : count);
  foreign_.reserve(foreign ? count : 0);
  refs_.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (foreign) {
      CUstream handle = nullptr;
      gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&handle, CU_STREAM_NON_BLOCKING),
                                "create a stream");
      foreign_.push_back(handle);
      refs_.emplace_back(handle);
    } else {
      own_.emplace_back(device);
      refs_.push_back(own_.back());
    }
  }
}

stream_set::~stream_set() {
  for (CUstream const handle : foreign_) gpumem::driver_api::driver().stream_destroy(handle);
}

void stream_set::synchronize() const {
  for (gpumem::stream_ref const& each : refs_) {
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_synchronize(each.get()), "wait for a stream");
  }
}

thread_team::thread_team(unsigned size, member_setup const& setup) : spans_(size), start_(size), finish_(size) {
  for (unsigned member = 1; member < size; ++member) {
    threads_.emplace_back([this, member, setup] {
      // a member whose setup fails must still meet the others at the barriers; it throws in its first pass
      bool served = false;
      try {
        setup([&] {
          served = true;
          serve(member);
        });
      } catch (...) {
        if (served) return;
        spans_[member].error = std::current_exception();
        serve(member);
      }
    });
  }
}

thread_team::~thread_team() {
  body_ = nullptr;
  start_.arrive_and_wait();
  for (std::thread& each : threads_) each.join();
}

void thread_team::serve(unsigned member) {
  for (;;) {
    start_.arrive_and_wait();
    if (body_ == nullptr) return;
    run_one(member);
    finish_.arrive_and_wait();
  }
}

void thread_team::run_one(unsigned member) noexcept {
  span& mine = spans_[member];
  if (mine.error) return;
  mine.begin = clock::now();
  try {
    (*body_)(member);
  } catch (...) { mine.error = std::current_exception(); }
  mine.end = clock::now();
}

double thread_team::run(std::function<void(unsigned)> const& body) {
  body_ = &body;
  start_.arrive_and_wait();
  run_one(0);
  finish_.arrive_and_wait();
  for (span& each : spans_) {
    if (each.error) std::rethrow_exception(std::exchange(each.error, nullptr));
  }
  auto const [first, ignored] =
      std::minmax_element(spans_.begin(), spans_.end(), [](span const& a, span const& b) { return a.begin < b.begin; });
  auto const [unused, last] =
      std::minmax_element(spans_.begin(), spans_.end(), [](span const& a, span const& b) { return a.end < b.end; });
  return std::chrono::duration<double, std::nano>(last->end - first->begin).count();
}

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
