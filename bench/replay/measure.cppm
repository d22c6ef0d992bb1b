// Measures what a resource costs on a trace: chooses the passes and computes the row of the table from them.
// SPDX-License-Identifier: Apache-2.0
module;

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

export module replay:measure;

import gpumem;
import :pass;
import :options;
import :plan;
import :work;
import :replay_session;
import :result;

namespace replay {

/// Returns the most progress steps that one trace over one resource can have.
export std::size_t passes_of(options const& chosen, bool simulated);

/// Returns the times of passes at the recorded pace, the cold pass first, from the nanoseconds of their calls. `clock`
/// is the cost of reading the clock that each of these includes.
export measured_times paced_times_of(std::vector<pass_cost> const& passes,
                                     std::vector<std::vector<double>> const& calls, double clock);

namespace detail {

/// Returns a row with all fields that are known before anything runs.
result describe(run_config const& what);

/// Returns the nanoseconds that it takes to read the clock.
double clock_cost();

/// Returns the times of the calls and of the passes, the cold pass first.
measured_times times_of(std::vector<pass_cost> const& passes, std::uint64_t operations, std::vector<double> calls);

/// Sets the driver calls per 1,000 operations: of the cold pass, and of all warm passes together.
void set_driver_calls(result& row, std::vector<pass_cost> const& passes);

device_time_ratios ratios_of(std::vector<double> const& milliseconds, std::vector<double> const& preallocated);

inline bool runs_paced(options const& chosen) { return chosen.pace == pace_choice::recorded; }
inline bool runs_without_work(options const& chosen, bool simulated) { return !chosen.work || !simulated; }

// Notes the most bytes that were live, and that the resource had from the driver, in the pass that has ended.
template <class Resource> void end_peak(result& row, Resource& resource) {
  auto const figures = resource.statistics();
  row.peaks_by_pass.push_back(figures.peak_reserved);
  row.peak_reserved_bytes = std::max(row.peak_reserved_bytes, figures.peak_reserved);
  row.counted_live_bytes = std::max(row.counted_live_bytes, figures.peak_live);
  if constexpr (requires { resource.reset_peaks(); }) resource.reset_peaks();
}

// Called when all blocks are free. Returns whether the resource knows its free ranges.
template <class Figures>
bool set_memory(result& row, Figures const& statistics, live_counter const& live, std::uint64_t failures) {
  // several threads are counted the same way over each resource; a peer counts none
  row.counted_live_bytes = std::max(row.counted_live_bytes, statistics.peak_live);
  if (std::uint64_t const peak = row.threads > 1 ? live.peak() : row.counted_live_bytes; peak != 0)
    row.peak_live_bytes = peak;
  row.peak_reserved_bytes = std::max(row.peak_reserved_bytes, statistics.peak_reserved);
  row.failures = failures;
  return statistics.largest_free != 0;
}

template <class Resource> void clear_pass(Resource& resource, plan const& operations, replay_session& on) {
  on.each_member(
      [&](replay_session::member mine) { free_live_at_end(resource, operations, mine.streams, mine.state); });
  on.synchronize();
}

// Passes without kernels, which show the cost of calls. Single calls are timed in an additional pass.
template <class Make> bool measure_calls(run_config const& what, replay_session& on, Make const& make, result& row) {
  plan const& operations = what.trace->operations;
  auto resource = make(what.where->device, row.limit_bytes);
  live_counter live{operations, row.threads, !what.where->simulated};
  std::vector<pass_cost> passes;
  for (unsigned i = 0; i <= what.chosen->repeat; ++i) {
    passes.push_back(on.run(i == 0 ? "cold pass" : "warm pass", [&](replay_session::member mine) {
      no_timer watch;
      live.run(resource, mine, watch);
    }));
    live.end_pass();
    end_peak(row, resource);
    clear_pass(resource, operations, on);
  }
  set_driver_calls(row, passes);
  bool const knows_ranges = set_memory(row, resource.statistics(), live, on.take_failures());
  if (what.where->simulated) return knows_ranges;

  std::vector<call_timer> watches(what.threads, call_timer{operations.operations.size()});
  on.run("single calls", [&](replay_session::member mine) {
    run_pass(resource, operations, mine.streams, mine.state, watches[mine.number]);
  });
  clear_pass(resource, operations, on);
  std::vector<double> calls;
  for (call_timer& watch : watches) calls.insert(calls.end(), watch.nanoseconds().begin(), watch.nanoseconds().end());
  row.times = times_of(passes, operations.operations.size(), std::move(calls));
  return knows_ranges;
}

// Passes at the recorded pace: the cost of calls in a program that does more than allocate. Every call is timed anyway,
// so there is no additional pass for single calls.
template <class Make> bool measure_paced(run_config const& what, replay_session& on, Make const& make, result& row) {
  plan const& operations = what.trace->operations;
  auto resource = make(what.where->device, row.limit_bytes);
  live_counter const live{operations, 1, true};
  pace_timer<> watch{operations};
  std::vector<pass_cost> passes;
  std::vector<std::vector<double>> calls;
  for (unsigned i = 0; i <= what.chosen->repeat; ++i) {
    passes.push_back(
        on.run(i == 0 ? "cold pass, recorded pace" : "warm pass, recorded pace", [&](replay_session::member mine) {
          watch.begin();
          run_pass(resource, operations, mine.streams, mine.state, watch);
        }));
    calls.emplace_back(watch.nanoseconds().begin(), watch.nanoseconds().end());
    end_peak(row, resource);
    clear_pass(resource, operations, on);
  }
  set_driver_calls(row, passes);
  bool const knows_ranges = set_memory(row, resource.statistics(), live, on.take_failures());
  if (!what.where->simulated) row.times = paced_times_of(passes, calls, clock_cost());
  return knows_ranges;
}

// Passes with kernels between the operations, which keep freed memory from other streams as real work does. The row's
// driver calls, memory and failures come from these passes.
template <class Make> bool measure_work(run_config const& what, replay_session& on, Make const& make, result& row) {
  plan const& operations = what.trace->operations;
  work_kernel const kernel{what.where->device, what.chosen->work->microseconds};
  gpu_stopwatch stopwatch{what.where->device, on.sets()};
  std::vector<double> preallocated;
  if (!what.where->simulated) preallocated = time_preallocated(what, on, kernel, stopwatch);

  auto resource = make(what.where->device, row.limit_bytes);
  row.peaks_by_pass.clear();
  row.peak_reserved_bytes = 0;
  live_counter live{operations, row.threads, !what.where->simulated};
  std::vector<pass_cost> passes;
  std::vector<double> milliseconds;
  for (unsigned i = 0; i <= what.chosen->repeat; ++i) {
    if (!what.where->simulated) stopwatch.begin();
    passes.push_back(on.run(i == 0 ? "cold pass with work" : "warm pass with work", [&](replay_session::member mine) {
      work_timer watch{kernel, what.chosen->work->every, mine.streams};
      live.run(resource, mine, watch);
    }));
    if (!what.where->simulated) milliseconds.push_back(stopwatch.end());
    live.end_pass();
    end_peak(row, resource);
    passes.back().driver_calls -= launches_of(operations, what.chosen->work->every) * what.threads;
    clear_pass(resource, operations, on);
  }
  set_driver_calls(row, passes);
  bool const knows_ranges = set_memory(row, resource.statistics(), live, on.take_failures());
  if (row.times) row.times->device_time = ratios_of(milliseconds, preallocated);
  return knows_ranges;
}

// A cold pass over another resource, at full pace: reading its statistics would change the times of the other passes.
template <class Make>
void measure_fragmentation(run_config const& what, replay_session& on, Make const& make, result& row) {
  plan const& operations = what.trace->operations;
  std::optional<work_kernel> kernel;
  if (what.chosen->work) kernel.emplace(what.where->device, what.chosen->work->microseconds);
  auto resource = make(what.where->device, row.limit_bytes);
  std::vector<gpumem::statistics> peaks(what.threads);
  on.run("fragmentation", [&](replay_session::member mine) {
    auto const replay_with = [&](auto other) {
      growth_timer watch{resource, std::move(other)};
      run_pass(resource, operations, mine.streams, mine.state, watch);
      peaks[mine.number] = watch.peak();
    };
    kernel ? replay_with(work_timer{*kernel, what.chosen->work->every, mine.streams}) : replay_with(no_timer{});
  });
  clear_pass(resource, operations, on);
  on.take_failures(); // those of the other passes count
  row.fragmentation = fragmentation_of(*std::ranges::max_element(peaks, {}, &gpumem::statistics::reserved));
}

} // namespace detail

/// Measures one trace over the resource that `make(device, limit_bytes)` returns; a limit of 0 means none. Throws
/// cuda_error; out_of_memory if the resource cannot be made; std::runtime_error for failures other than a lack of
/// memory.
export template <class Make> result measure(run_config const& what, Make const& make) {
  result row = detail::describe(what);
  replay_session on{what};
  bool knows_ranges = false;
  if (detail::runs_paced(*what.chosen)) {
    knows_ranges = detail::measure_paced(what, on, make, row);
  } else {
    if (detail::runs_without_work(*what.chosen, what.where->simulated))
      knows_ranges = detail::measure_calls(what, on, make, row);
    if (what.chosen->work) knows_ranges = detail::measure_work(what, on, make, row);
  }
  if (knows_ranges) detail::measure_fragmentation(what, on, make, row);
  return row;
}

} // namespace replay
