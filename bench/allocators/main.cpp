// gpumem-bench: what allocations cost over gpumem's pool and over other allocators, side by side in one run.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
import peers;
import replay;

#include "rows.hpp"

namespace {

constexpr std::size_t most_streams = 16;

struct arguments {
  replay::device_choice device = replay::device_choice::automatic;
  std::vector<std::string> peers;
  std::size_t operations = 40'000;
  double milliseconds = 50;
};

// What went wrong, or null. Google Benchmark 1.8 gave the fields other names.
template <class Run> char const* error_of(Run const& run) {
  if constexpr (requires { run.error_occurred; }) {
    return run.error_occurred ? run.error_message.c_str() : nullptr;
  } else {
    return static_cast<bool>(run.skipped) ? run.skip_message.c_str() : nullptr;
  }
}

// The simulated device has no speed: rows run, and no figure is shown.
class names_only final : public benchmark::BenchmarkReporter {
public:
  bool ReportContext(Context const&) override {
    std::puts("the simulated device: rows run, no times are shown");
    return true;
  }
  void ReportRuns(std::vector<Run> const& runs) override {
    for (auto const& each : runs) {
      auto const* const error = error_of(each);
      std::printf("%-44s %s\n", each.benchmark_name().c_str(), error ? error : "ran");
      failed_ = failed_ || error;
    }
  }
  bool failed() const noexcept { return failed_; }

private:
  bool failed_ = false;
};

template <class Make> void add_rows(char const* name, bench::context& with, Make make) {
  bench::rows<Make>{name, with, std::move(make)}.add_all();
}

void register_rows(bench::context& with, std::vector<std::string> const& files) {
  add_rows("pool", with, [](gpumem::device where) { return gpumem::pool_resource{where}; });
  std::vector<peers::gpumem_peer const*> others{&peers::driver_pool()};
  for (auto const& file : files) {
    auto const found = peers::load_peers(file);
    others.insert(others.end(), found.begin(), found.end());
  }
  for (auto const* each : others) {
    add_rows(each->name, with, [each](gpumem::device where) { return peers::peer_resource{*each, where}; });
  }
  benchmark::RegisterBenchmark("stream_id_and_capture/driver",
                               [&with](benchmark::State& state) {
                                 replay::stream_set const foreign{with.device, 1, true};
                                 bench::stream_queries(state, with, foreign.refs().front());
                               })
      ->UseManualTime()
      ->Iterations(5);
}

int run(arguments const& asked) {
  auto const where = replay::choose_device(asked.device);
  gpumem::current_device const here{where.device};
  bench::context with{where.device, where.simulated, asked.operations, asked.milliseconds / 1000, {}};
  for (std::size_t i = 0; i < most_streams; ++i) with.streams.emplace_back(where.device);
  register_rows(with, asked.peers);
  if (!where.simulated) {
    std::printf("%s, operations are single calls: an allocation and its free are two\n", where.name.c_str());
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  }
  names_only shown;
  benchmark::RunSpecifiedBenchmarks(&shown);
  return shown.failed() ? 1 : 0;
}

} // namespace

int main(int count, char** values) {
  CLI::App app{"What allocations cost over gpumem's pool and over other allocators. Google Benchmark's options "
               "(--benchmark_filter=REGEX, --benchmark_format=json, …) work too."};
  arguments asked;
  std::map<std::string, replay::device_choice> const devices{{"auto", replay::device_choice::automatic},
                                                             {"cuda", replay::device_choice::cuda},
                                                             {"simulated", replay::device_choice::simulated}};
  app.add_option("--device", asked.device, "cuda, simulated or auto")->transform(CLI::CheckedTransformer(devices));
  app.add_option("--peer", asked.peers, "shared library with other allocators, see bench/peers")
      ->check(CLI::ExistingFile);
  app.add_option("--operations", asked.operations, "of one measured stretch and thread, at least (40000)")
      ->check(CLI::Range(std::size_t{2}, std::size_t{1'000'000'000}));
  app.add_option("--milliseconds", asked.milliseconds, "that a stretch takes at least, on a real device (50)")
      ->check(CLI::Range(0.0, 10'000.0));
  benchmark::Initialize(&count, values); // takes its own options out
  CLI11_PARSE(app, count, values);
  try {
    return run(asked);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem-bench: %s\n", error.what());
    return 1;
  }
}
