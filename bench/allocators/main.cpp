// gpumem-bench: the cost of allocations over gpumem's pool and over other allocators, in one run.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <benchmark/benchmark.h>
#include <gpumem/pool.hpp>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "../replay/command_line.hpp"
#include "reporters.hpp"

import gpumem;
import peers;
import replay;

#include "benchmarks.hpp"

namespace {

constexpr std::size_t most_streams = 16;

struct arguments {
  replay::device_choice device = replay::device_choice::automatic;
  std::vector<std::string> peers;
  std::size_t operations = 40'000;
  double milliseconds = 50;
};

template <class Make> void add_rows(char const* name, bench::context& with, Make make) {
  bench::benchmarks<Make>{name, with, std::move(make)}.add_all();
}

// Adaptors over a pool: the difference to the pool's own rows is what they cost.
void add_adaptors(bench::context& with) {
  auto const add = [&](char const* name, auto adapt) {
    auto const make = [adapt](gpumem::device where) { return adapt(gpumem::pool_resource{where}); };
    bench::benchmarks{name, with, make}.add_hits();
  };
  add("pool_aligned", [](auto pool) { return gpumem::aligned_adaptor{std::move(pool)}; }); // the adaptor only forwards
  add("pool_scope", [](auto pool) { return gpumem::scope{std::move(pool)}; });
  add("pool_statistics", [](auto pool) { return gpumem::statistics_adaptor{std::move(pool)}; });
  add("pool_limiting", [](auto pool) { return gpumem::limiting_adaptor{std::move(pool), {.limit = PTRDIFF_MAX}}; });
  for (auto const [name, format] : {std::pair{"pool_logging", gpumem::log_format::csv},
                                    std::pair{"pool_logging_binary", gpumem::log_format::binary}}) {
    add(name, [format](auto pool) {
      return gpumem::logging_adaptor{std::move(pool), gpumem::extend::log_sink{"/dev/null"}, {.format = format}};
    });
  }
}

void register_rows(bench::context& with, std::vector<std::string> const& files) {
  auto const pool_of = [](double effort) {
    return [effort](gpumem::device where) {
      gpumem::pool_options options;
      options.effort = effort;
      return gpumem::pool_resource{where, options};
    };
  };
  add_rows("pool", with, pool_of(gpumem::pool_options{}.effort));
  add_rows("pool_effort_0", with, pool_of(0));
  add_rows("pool_effort_1", with, pool_of(1));
  add_rows("arena", with, [](gpumem::device where) { return gpumem::arena_resource{gpumem::cuda_resource{where}}; });
  add_rows("binning", with, [](gpumem::device where) {
    return gpumem::binning_resource{gpumem::pool_resource{where}, {.min_exponent = 18, .max_exponent = 22}};
  });
  // These serve only rows of one size. Regions are not reset here, so that large blocks would fill the device.
  bench::benchmarks{"fixed_size", with,
                    [](gpumem::device where) { return gpumem::fixed_size_resource{gpumem::cuda_resource{where}}; }}
      .add_hits();
  bench::benchmarks{"monotonic", with,
                    [](gpumem::device where) { return gpumem::monotonic_resource{gpumem::cuda_resource{where}}; }}
      .add_small_hits();
  // The pool again, through the C library and the C++ headers over it.
  bench::benchmarks{"c_library", with, [](gpumem::device where) { return gpumem::pool{where.ordinal()}; }}.add_hits();
  add_adaptors(with);
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

int run(arguments const& asked, bench::formats const& format) {
  auto const where = replay::choose_device(asked.device);
  gpumem::device_guard const here{where.device};
  bench::context with{where.device, where.simulated, asked.operations, asked.milliseconds / 1000, {}};
  for (std::size_t i = 0; i < most_streams; ++i) with.streams.emplace_back(where.device);
  register_rows(with, asked.peers);
  if (!where.simulated) {
    std::fprintf(format.console ? stdout : stderr, "%s; an allocation and its free count as two operations\n",
                 where.name.c_str());
  }
  std::unique_ptr<bench::report> shown, written; // null: Google Benchmark's own reporter
  if (format.csv_shown) {
    shown = std::make_unique<bench::csv_reporter>(where.simulated);
  } else if (where.simulated) {
    shown = std::make_unique<bench::dry_run_reporter>();
  }
  if (format.csv_written) written = std::make_unique<bench::csv_reporter>(where.simulated);
  benchmark::RunSpecifiedBenchmarks(shown.get(), written.get());
  if (where.simulated) replay::accept_unordered(false);
  return where.simulated && shown->failed() ? 1 : 0;
}

} // namespace

int main(int count, char** values) {
  CLI::App app{"Measures the cost of allocations over gpumem's pool and other allocators.", "gpumem-bench"};
  replay::declare_version(app);
  arguments asked;
  std::map<std::string, replay::device_choice> const devices{{"auto", replay::device_choice::automatic},
                                                             {"cuda", replay::device_choice::cuda},
                                                             {"simulated", replay::device_choice::simulated}};
  app.add_option("--device", asked.device, "cuda, simulated or auto")->transform(CLI::CheckedTransformer(devices));
  app.add_option("--peer", asked.peers, "shared library with other allocators, see bench/peers")
      ->check(CLI::ExistingFile);
  app.add_option("--operations", asked.operations, "operations per sample and thread, at least (40000)")
      ->check(CLI::Range(std::size_t{2}, std::size_t{1'000'000'000}));
  app.add_option("--milliseconds", asked.milliseconds, "milliseconds per sample on a real device, at least (50)")
      ->check(CLI::Range(0.0, 10'000.0));
  app.footer("Google Benchmark's options:\n  --benchmark_filter=REGEX, --benchmark_list_tests, --benchmark_format=csv, "
             "--benchmark_out=FILE, --benchmark_out_format=csv, …");
  bool const help =
      std::any_of(values, values + count, [](std::string_view word) { return word == "--help" || word == "-h"; });
  if (help) return std::fputs(app.help().c_str(), stdout) < 0; // Google Benchmark would print its own
  auto const format = bench::formats_of({values, static_cast<std::size_t>(count)});
  benchmark::Initialize(&count, values); // removes Google Benchmark's options from the arguments
  CLI11_PARSE(app, count, values);
  try {
    return run(asked, format);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem-bench: %s\n", error.what());
    return 1;
  }
}
