// Computes a row of the table from the costs of its passes.
// SPDX-License-Identifier: Apache-2.0
module;

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

module replay:measure.impl;

import :replay_session;
import :measure;
import :options;
import :plan;
import :result;

namespace replay {

std::size_t passes_of(options const& chosen, bool simulated) {
  std::size_t const passes = chosen.repeat + 1;
  std::size_t const fragmentation = 1;
  if (detail::runs_paced(chosen)) return passes + fragmentation;
  std::size_t const without_work = detail::runs_without_work(chosen, simulated) ? passes + (simulated ? 0 : 1) : 0;
  std::size_t const with_work = chosen.work ? passes * (simulated ? 1 : 2) : 0;
  return without_work + with_work + fragmentation;
}

namespace detail {

result describe(run_config const& what) {
  plan const& operations = what.trace->operations;
  options const& chosen = *what.chosen;
  result row;
  row.trace = what.trace->name;
  row.file = what.trace->file;
  row.resource = what.resource;
  row.device = what.where->name;
  row.threads = what.threads;
  row.warm_passes = chosen.repeat;
  row.foreign_streams = chosen.foreign;
  row.work_microseconds = chosen.work ? chosen.work->microseconds : 0;
  row.work_every = chosen.work ? chosen.work->every : 0;
  if (runs_paced(chosen)) row.recorded_seconds = static_cast<double>(operations.microseconds.back()) / 1e6;
  row.limit_bytes = chosen.limit ? chosen.limit->of(operations.peak_live_bytes) : 0;
  row.operations = operations.operations.size();
  row.peak_live_bytes = operations.peak_live_bytes * what.threads;
  row.suggested_initial_bytes = suggested_initial_size(row.peak_live_bytes);
  row.streams = operations.streams;
  row.frees_elsewhere = operations.frees_elsewhere;
  row.blocks_live_at_end = operations.live_at_end.size();
  row.recorded_failures = operations.recorded_failures;
  return row;
}

double clock_cost() {
  using clock = std::chrono::steady_clock;
  std::vector<double> costs(1001);
  for (double& cost : costs) {
    auto const begin = clock::now();
    cost = std::chrono::duration<double, std::nano>(clock::now() - begin).count();
  }
  return median(std::move(costs));
}

call_times call_times_of(std::span<double> calls, double clock) {
  return {.p50 = percentile(calls, 0.5), .p99 = percentile(calls, 0.99), .max = percentile(calls, 1.0), .clock = clock};
}

measured_times times_of(std::vector<pass_cost> const& passes, std::uint64_t operations, std::vector<double> calls) {
  std::vector<double> warm;
  for (std::size_t i = 1; i < passes.size(); ++i) {
    warm.push_back(passes[i].nanoseconds / static_cast<double>(operations));
  }
  measured_times times;
  times.cold = passes.front().nanoseconds / static_cast<double>(operations);
  times.warm = median(std::move(warm));
  times.call = call_times_of(calls, clock_cost());
  return times;
}

void set_driver_calls(result& row, std::vector<pass_cost> const& passes) {
  double const operations = static_cast<double>(row.operations) * row.threads / 1000;
  std::uint64_t warm = 0;
  for (std::size_t i = 1; i < passes.size(); ++i) warm += passes[i].driver_calls;
  row.driver_calls_cold = static_cast<double>(passes.front().driver_calls) / operations;
  row.driver_calls_warm = static_cast<double>(warm) / operations / static_cast<double>(passes.size() - 1);
}

device_time_ratios ratios_of(std::vector<double> const& milliseconds, std::vector<double> const& preallocated) {
  double const reference = median(preallocated);
  return {.cold = milliseconds.front() / reference,
          .warm = median({milliseconds.begin() + 1, milliseconds.end()}) / reference,
          .preallocated_milliseconds = reference};
}

} // namespace detail

measured_times paced_times_of(std::vector<pass_cost> const& passes, std::vector<std::vector<double>> const& calls,
                              double clock) {
  std::vector<double> each, shares, seconds, warm_calls;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    double const watched = std::accumulate(calls[i].begin(), calls[i].end(), 0.0);
    double const taken = std::max(0.0, watched - clock * static_cast<double>(calls[i].size()));
    each.push_back(taken / static_cast<double>(calls[i].size()));
    shares.push_back(taken / passes[i].nanoseconds);
    seconds.push_back(passes[i].nanoseconds / 1e9);
    if (i != 0) warm_calls.insert(warm_calls.end(), calls[i].begin(), calls[i].end());
  }
  auto const warm = [](std::vector<double> const& values) { return median({values.begin() + 1, values.end()}); };
  measured_times times;
  times.cold = each.front();
  times.warm = warm(each);
  times.call = detail::call_times_of(warm_calls, clock);
  times.pace = pace_times{.share_cold = shares.front(), .share_warm = warm(shares), .seconds_warm = warm(seconds)};
  return times;
}

} // namespace replay
