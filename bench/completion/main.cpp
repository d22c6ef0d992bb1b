// gpumem-completion-bench: the time from a kernel's end until the coroutine that awaits it goes on, and the processor
// time of the wait.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../replay/command_line.hpp"

import gpumem;
import replay;

namespace {

using gpumem::latency;
using gpumem::task;
using clock_type = std::chrono::steady_clock;
using microseconds = std::chrono::duration<double, std::micro>;

constexpr std::size_t pool_threads = 4;

enum class way {
  blocks, // the thread, in the driver
  spins,  // the thread, which queries an event
  low,
  balanced,
};

// One row: the number of concurrent waiters, each on its own stream, and how they wait.
struct scenario {
  char const* name;
  std::size_t waiters;
  way waits;
  double kernel_microseconds;
};

constexpr scenario scenarios[] = {
    {"blocked in the driver", 1, way::blocks, 50},
    {"a thread that spins", 1, way::spins, 50},
    {"1 waiter, low", 1, way::low, 50},
    {"1 waiter, balanced", 1, way::balanced, 50},
    {"1 waiter, balanced, 5 ms kernel", 1, way::balanced, 5'000},
    {"8 on 4 threads, low", 8, way::low, 50},
    {"8 on 4 threads, balanced", 8, way::balanced, 50},
    {"64 on 4 threads, low", 64, way::low, 50},
    {"64 on 4 threads, balanced", 64, way::balanced, 50},
};

// Times of one wait, in microseconds: of the launch alone, and from before the launch until after the wait without the
// kernel's own time.
struct times {
  double launch, latency;
};

// Cores: processor time divided by elapsed time.
struct statistics {
  std::vector<double> launches, latencies; // sorted
  double cores = 0;
};

double processor_seconds() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) * 1e-9;
}

class cores_used {
public:
  double so_far() const {
    return (processor_seconds() - spent_) / std::chrono::duration<double>(clock_type::now() - begin_).count();
  }

private:
  clock_type::time_point begin_ = clock_type::now();
  double spent_ = processor_seconds();
};

class bench {
public:
  bench(gpumem::device device, std::size_t rounds) : device_{device}, rounds_{rounds}, threads_{pool_threads} {}

  statistics measure(scenario const& what) {
    replay::work_kernel const kernel{device_, what.kernel_microseconds};
    std::vector<gpumem::stream> streams;
    std::vector<std::vector<times>> each(what.waiters);
    for (std::size_t i = 0; i < what.waiters; ++i) streams.emplace_back(device_);
    run(what, kernel, streams, each, rounds_ / 10 + 1); // warm-up: what the first uses create
    for (auto& one : each) one.clear();
    cores_used const cores;
    run(what, kernel, streams, each, rounds_);
    statistics result{{}, {}, cores.so_far()};
    for (auto const& one : each) {
      for (auto const& round : one) {
        result.launches.push_back(round.launch);
        result.latencies.push_back(round.latency);
      }
    }
    std::ranges::sort(result.launches);
    std::ranges::sort(result.latencies);
    return result;
  }

private:
  void run(scenario const& what, replay::work_kernel const& kernel, std::vector<gpumem::stream>& streams,
           std::vector<std::vector<times>>& each, std::size_t rounds) {
    std::vector<task<>> waiting;
    for (std::size_t i = 0; i < what.waiters; ++i) {
      each[i].reserve(rounds);
      waiting.push_back(wait(what, kernel, streams[i], each[i], rounds));
    }
    gpumem::sync_wait(gpumem::when_all(std::move(waiting)));
  }

  // One waiter resumes on the library's thread, several on the thread pool.
  task<> wait(scenario const& what, replay::work_kernel const& kernel, gpumem::stream& on, std::vector<times>& seen,
              std::size_t rounds) {
    gpumem::event happened{device_};
    for (std::size_t i = 0; i < rounds; ++i) {
      auto const begin = clock_type::now();
      kernel.launch(on, nullptr, 0);
      auto const launched = clock_type::now();
      if (what.waits == way::blocks) {
        gpumem::completion(on).wait();
      } else if (what.waits == way::spins) {
        happened.record(on);
        while (!happened.is_done()) {}
      } else {
        auto const urgency = what.waits == way::low ? latency::low : latency::balanced;
        co_await gpumem::completion(on, {urgency, what.waiters > 1 ? &threads_ : nullptr});
      }
      seen.push_back({microseconds{launched - begin}.count(),
                      microseconds{clock_type::now() - begin}.count() - what.kernel_microseconds});
    }
  }

  gpumem::device device_;
  std::size_t rounds_;
  gpumem::thread_pool_executor threads_;
};

double quantile(std::vector<double> const& sorted, double part) {
  return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(part * static_cast<double>(sorted.size())))];
}

// Processor time while no wait is pending; the rows show it with pending waits.
double idle_cores() {
  cores_used const cores;
  std::this_thread::sleep_for(std::chrono::milliseconds{200});
  return cores.so_far();
}

void print_times(bench& all, std::string const& device) {
  std::printf("%s\n%-34s %10s %10s %10s %10s\n", device.c_str(), "kernel's end to coroutine", "p50 us", "p99 us",
              "cores", "launch us");
  for (auto const& each : scenarios) {
    auto const seen = all.measure(each);
    std::printf("%-34s %10.1f %10.1f %10.2f %10.1f\n", each.name, quantile(seen.latencies, .5),
                quantile(seen.latencies, .99), seen.cores, quantile(seen.launches, .5));
    std::fflush(stdout);
  }
  std::printf("%-34s %10s %10s %10.2f\n", "no wait pending", "", "", idle_cores());
}

// The simulated device has no meaningful times, so only the completed waits are counted.
void print_counts(bench& all) {
  std::puts("the simulated device: waits are counted, no times are shown");
  for (auto const& each : scenarios) std::printf("%-34s %zu waits\n", each.name, all.measure(each).latencies.size());
}

} // namespace

int main(int count, char** arguments) {
  CLI::App app{"The time from the end of a kernel until a coroutine that awaits it goes on, and the cost of the wait.",
               "gpumem-completion-bench"};
  replay::declare_version(app);
  std::map<std::string, replay::device_choice> const devices{{"auto", replay::device_choice::automatic},
                                                             {"cuda", replay::device_choice::cuda},
                                                             {"simulated", replay::device_choice::simulated}};
  auto choice = replay::device_choice::automatic;
  std::size_t rounds = 2'000;
  app.add_option("--device", choice, "cuda, simulated or auto")->transform(CLI::CheckedTransformer(devices));
  app.add_option("--rounds", rounds, "number of waits of each waiter")->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, count, arguments);
  try {
    auto const where = replay::choose_device(choice);
    bench all{where.device, rounds};
    where.simulated ? print_counts(all) : print_times(all, where.name);
    return 0;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem-completion-bench: %s\n", error.what());
    return 1;
  }
}
