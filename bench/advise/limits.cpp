// The replay with waits, and the search.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>
module advise:limits.impl;
import gpumem;
import replay;
import :candidate;
import :limits;
import :replays;

namespace advise {

namespace detail {

// The calls of all threads, of which some wait. One thread makes them, so that each run is the same.
class waiting_pass {
public:
  waiting_pass(replay::plan const& of, gpumem::pool_resource<gpumem::cuda_resource>& pool,
               std::span<gpumem::stream_ref const> streams)
      : plan_{of}, pool_{pool}, streams_{streams}, pointers_(of.operations.size()), allocations_(of.operations.size()),
        calls_(1 + *std::ranges::max_element(of.threads)) {
    std::vector<std::size_t> newest(of.blocks);
    for (std::size_t i = 0; i < of.operations.size(); ++i) {
      std::size_t& allocation = newest[of.operations[i].block];
      if (of.operations[i].allocates) allocation = i;
      allocations_[i] = allocation;
    }
  }

  void run() {
    for (std::size_t next = 0; next < plan_.operations.size(); ++next) {
      std::uint32_t const thread = plan_.threads[next];
      if (calls_[thread].empty() && attempt(next)) {
        if (!waiting_.empty()) serve_waiting();
        continue;
      }
      if (calls_[thread].empty()) {
        waiting_.push_back(thread);
        if (plan_.operations[next].allocates) ++waits_;
      }
      calls_[thread].push_back(next);
    }
  }

  std::uint64_t waits() const noexcept { return waits_; }
  /// Returns the call that has waited longest; nullopt if none waits.
  std::optional<std::size_t> stuck() const {
    if (waiting_.empty()) return std::nullopt;
    for (std::uint32_t const thread : waiting_) {
      if (plan_.operations[calls_[thread].front()].allocates) return calls_[thread].front();
    }
    return calls_[waiting_.front()].front();
  }

private:
  bool attempt(std::size_t place) {
    replay::operation const& call = plan_.operations[place];
    void*& pointer = pointers_[allocations_[place]];
    if (call.allocates) {
      pointer = pool_.try_allocate(streams_[call.stream], call.bytes).value_or(nullptr);
      return pointer != nullptr;
    }
    if (pointer == nullptr) return false;
    pool_.deallocate(streams_[call.stream], pointer, call.bytes);
    pointer = nullptr;
    return true;
  }

  // Makes the calls of each thread that waits until one of them must wait; again after each round with a free.
  void serve_waiting() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t i = 0; i < waiting_.size();) {
        std::deque<std::size_t>& calls = calls_[waiting_[i]];
        bool first = true;
        while (!calls.empty() && attempt(calls.front())) {
          calls.pop_front();
          first = false;
        }
        progress = progress || !first;
        if (!calls.empty()) {
          if (!first && plan_.operations[calls.front()].allocates) ++waits_;
          ++i;
        } else {
          waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
    }
  }

  replay::plan const& plan_;
  gpumem::pool_resource<gpumem::cuda_resource>& pool_;
  std::span<gpumem::stream_ref const> streams_;
  std::vector<void*> pointers_;                // by the place of the allocation
  std::vector<std::size_t> allocations_;       // of each operation: the place of the allocation of its block
  std::vector<std::deque<std::size_t>> calls_; // of each thread: those that wait
  std::vector<std::uint32_t> waiting_;         // threads, the longest wait first
  std::uint64_t waits_ = 0;
};

inline constexpr std::uint64_t coarse_steps = 1000; // of the live bytes, in the first part of the search

} // namespace detail

figures replay_with_waits(replay::loaded_trace const& trace, std::uint64_t limit) {
  auto const where = replay::choose_device(replay::device_choice::simulated);
  gpumem::device_guard const here{where.device};
  replay::stream_set const streams{where.device, trace.operations.streams, false};
  gpumem::pool_resource<gpumem::cuda_resource> pool{where.device, {.limit = limit, .effort = 1}};
  std::uint64_t const memory_calls = replay::memory_calls();
  std::uint64_t const calls = gpumem::driver_api::driver_calls();
  std::uint64_t const unmapped = gpumem::driver_api::driver_calls("cuMemUnmap");
  detail::waiting_pass pass{trace.operations, pool, streams.refs()};
  pass.run();
  return {.completed = !pass.stuck(),
          .reserved = pool.statistics().peak_reserved,
          .driver_calls = gpumem::driver_api::driver_calls() - calls,
          .memory_calls = replay::memory_calls() - memory_calls,
          .moved = gpumem::driver_api::driver_calls("cuMemUnmap") - unmapped,
          .waits = pass.waits(),
          .failed = pass.stuck().value_or(0)};
}

std::optional<least_limit> find_least_limit(replay::loaded_trace const& trace, replay::progress& shown) {
  auto const replays_of = [&](std::vector<std::uint64_t> const& limits) {
    std::vector<std::function<figures()>> jobs;
    for (std::uint64_t const steps : limits) {
      jobs.emplace_back([&, steps] { return replay_over(trace, "pool_effort_1", steps * limit_step); });
    }
    shown.step(trace.name + ": a limit of " + gpumem::format_bytes(limits.front() * limit_step));
    return run_jobs(jobs, [] {});
  };
  // Returns the first limit from `first` that completes, all in steps.
  auto const first_that_completes = [&](std::uint64_t first, std::uint64_t stride) {
    for (;; first += stride * processors()) {
      std::vector<std::uint64_t> limits;
      for (unsigned i = 0; i < processors(); ++i) limits.push_back(first + i * stride);
      auto const results = replays_of(limits);
      auto const found = std::ranges::find(results, true, &figures::completed);
      if (found != results.end()) return limits[static_cast<std::size_t>(found - results.begin())];
    }
  };
  if (!replays_of({0}).front().completed) return std::nullopt;
  std::uint64_t const live = (trace.operations.peak_live_bytes + limit_step - 1) / limit_step;
  std::uint64_t const stride = std::max<std::uint64_t>(live / detail::coarse_steps, 1);
  std::uint64_t least = first_that_completes(live, stride);
  if (least > live && stride > 1) least = first_that_completes(least - stride + 1, 1);
  least_limit ended{least * limit_step, std::nullopt};
  if (least > 1) ended.failed = replays_of({least - 1}).front().failed;
  return ended;
}

} // namespace advise
