// Reporters for the rows: names only, or comma-separated values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "metrics.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

/// The outputs for which the user asked for CSV. Google Benchmark removes its options from the arguments, and the
/// program cannot read them from the library afterwards.
struct formats {
  bool console; ///< the standard output is a table for people
  bool csv_shown;
  bool csv_written; ///< CSV goes to the file of --benchmark_out
};

inline formats formats_of(std::span<char* const> arguments) {
  auto const asked = [&](char const* variable, std::string_view option) {
    auto const* const preset = std::getenv(variable);
    std::string_view value = preset ? preset : "";
    for (std::string_view const each : arguments) {
      if (each.starts_with(option)) value = each.substr(option.size());
    }
    return value;
  };
  auto const shown = asked("BENCHMARK_FORMAT", "--benchmark_format=");
  auto const written = asked("BENCHMARK_OUT_FORMAT", "--benchmark_out_format=");
  auto const file = asked("BENCHMARK_OUT", "--benchmark_out=");
  return {.console = shown.empty() || shown == "console",
          .csv_shown = shown == "csv",
          .csv_written = written == "csv" && !file.empty()};
}

/// Records whether a row has failed.
class report : public benchmark::BenchmarkReporter {
public:
  bool failed() const noexcept { return failed_; }

protected:
  // Returns the row's error message; null if the row ran. Google Benchmark 1.8 renamed the fields.
  char const* error_of(Run const& run) {
    auto const* const error = message_of(run);
    failed_ = failed_ || error;
    return error;
  }

private:
  template <class AnyRun> static char const* message_of(AnyRun const& run) {
    if constexpr (requires { run.error_occurred; }) {
      return run.error_occurred ? run.error_message.c_str() : nullptr;
    } else {
      return static_cast<bool>(run.skipped) ? run.skip_message.c_str() : nullptr;
    }
  }
  bool failed_ = false;
};

/// For the simulated device, whose times mean nothing: rows run, and no metric is printed.
class dry_run_reporter final : public report {
public:
  bool ReportContext(Context const&) override {
    std::puts("the simulated device: rows run, no times are shown");
    return true;
  }
  void ReportRuns(std::vector<Run> const& runs) override {
    for (auto const& each : runs) {
      auto const* const error = error_of(each);
      std::printf("%-44s %s\n", each.benchmark_name().c_str(), error ? error : "ran");
    }
  }
};

/// Prints one line per row, all with the same columns. A column is empty where the row has no such metric, and always
/// on the simulated device. Google Benchmark's own reporter ends the program if a row has a metric that the first row
/// lacks.
class csv_reporter final : public report {
public:
  explicit csv_reporter(bool simulated) : simulated_{simulated} {}

  bool ReportContext(Context const&) override {
    auto& out = GetOutputStream();
    out << "name,iterations,real_time,cpu_time,time_unit,error_occurred,error_message";
    for (auto const* const name : metric_names) out << ',' << quoted(name);
    out << '\n';
    return true;
  }
  void ReportRuns(std::vector<Run> const& runs) override {
    for (auto const& each : runs) print(each);
    GetOutputStream().flush();
  }

private:
  static std::string quoted(std::string_view text) {
    std::string all{'"'};
    for (char const each : text) all += each == '"' ? std::string{"\"\""} : std::string{each};
    return all + '"';
  }
  void print(Run const& run) {
    auto& out = GetOutputStream();
    auto const* const error = error_of(run);
    bool const measured = !error && !simulated_;
    out << quoted(run.benchmark_name()) << ',';
    if (!error) out << run.iterations;
    out << ',';
    if (measured) out << run.GetAdjustedRealTime();
    out << ',';
    if (measured) out << run.GetAdjustedCPUTime();
    out << ',' << benchmark::GetTimeUnitString(run.time_unit) << ',';
    if (error)
      out << "true," << quoted(error);
    else
      out << ',';
    for (auto const* const name : metric_names) {
      out << ',';
      auto const found = run.counters.find(name);
      if (measured && found != run.counters.end()) out << found->second.value;
    }
    out << '\n';
  }

  bool simulated_;
};

} // namespace bench
