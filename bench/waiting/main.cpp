// gpumem-waiting-bench: tasks whose batches together need four times the available memory. Each task allocates its
// batch in three parts and runs a kernel after each. Three ways are compared: tasks that wait for memory; a static
// partition of the memory into slots; and tasks that free all their parts and start again when an allocation fails.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <gpumem/pool_options.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../replay/command_line.hpp"

import gpumem;
import replay;

namespace {

using gpumem::task;
using clock_type = std::chrono::steady_clock;
using pool_type = gpumem::pool_resource<gpumem::cuda_resource>;

constexpr std::array shares{.4, .3, .3};
constexpr std::size_t most_slots = 16, executor_threads = 4;

struct setting {
  std::size_t tasks = 64;
  std::size_t limit = std::size_t{4} << 30;
  double sigma = .5; // standard deviation of the logarithm of a batch's size
  double kernel_microseconds = 5'000;
  unsigned rounds = 5;
  std::uint64_t seed = 1;
};

// Draws lognormal sizes whose sum is four times the limit; none exceeds 15/16 of the limit.
std::vector<std::size_t> draw_batches(setting const& with) {
  std::mt19937_64 random{with.seed};
  std::lognormal_distribution<double> sizes{0, with.sigma};
  std::vector<double> drawn;
  double sum = 0;
  for (std::size_t i = 0; i < with.tasks; ++i) sum += drawn.emplace_back(sizes(random));
  std::vector<std::size_t> batches;
  for (auto const each : drawn) {
    auto const bytes = each / sum * 4 * static_cast<double>(with.limit);
    batches.push_back(std::min(static_cast<std::size_t>(bytes), with.limit - with.limit / 16));
  }
  return batches;
}

std::size_t part_of(std::size_t batch, std::size_t which) {
  return static_cast<std::size_t>(static_cast<double>(batch) * shares.at(which)) / 512 * 512 + 512;
}

struct outcome_of_run {
  double seconds = 0;
  std::size_t again = 0; // how many times tasks started again
};

class bench {
public:
  bench(gpumem::device device, setting const& with)
      : device_{device}, with_{with}, batches_{draw_batches(with)}, kernel_{device, with.kernel_microseconds},
        threads_{executor_threads} {
    for (std::size_t i = 0; i < with.tasks; ++i) streams_.emplace_back(device);
  }

  std::size_t largest() const { return std::ranges::max(batches_); }

  outcome_of_run waiting() {
    pool_type pool{device_, {.initial_size = with_.limit, .limit = with_.limit}};
    std::atomic<std::size_t> again{0};
    return timed(again, [&] {
      std::vector<task<>> all;
      for (std::size_t i = 0; i < batches_.size(); ++i) all.push_back(wait_for_batch(pool, i, again));
      gpumem::sync_wait(gpumem::when_all(std::move(all)));
    });
  }

  // Returns null if the largest batch exceeds a slot.
  std::optional<outcome_of_run> partition(std::size_t slots) {
    auto const slot_bytes = with_.limit / slots / 512 * 512;
    if (largest() + shares.size() * 512 > slot_bytes) return std::nullopt;
    gpumem::cuda_resource source{device_};
    auto* const memory = source.allocate_sync(with_.limit);
    std::atomic<std::size_t> next{0}, again{0};
    auto const result = timed(again, [&] {
      std::vector<task<>> all;
      for (std::size_t slot = 0; slot < slots; ++slot) {
        all.push_back(work_in_slot(static_cast<std::byte*>(memory) + slot_bytes * slot, slot, next));
      }
      gpumem::sync_wait(gpumem::when_all(std::move(all)));
    });
    source.deallocate_sync(memory, with_.limit);
    return result;
  }

  outcome_of_run throwing() {
    pool_type pool{device_, {.initial_size = with_.limit, .limit = with_.limit}};
    std::atomic<std::size_t> again{0};
    return timed(again, [&] {
      std::vector<std::thread> all;
      for (std::size_t i = 0; i < batches_.size(); ++i) {
        all.emplace_back([&, i] {
          while (!try_batch(pool, i)) {
            ++again;
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
          }
        });
      }
      for (auto& each : all) each.join();
    });
  }

private:
  template <class Run> outcome_of_run timed(std::atomic<std::size_t> const& again, Run run) {
    auto const begin = clock_type::now();
    run();
    return {std::chrono::duration<double>(clock_type::now() - begin).count(), again};
  }

  task<> kernel_on(gpumem::stream& on, void* memory, std::size_t bytes) {
    kernel_.launch(on, memory, bytes);
    co_await gpumem::completion(on, {gpumem::latency::balanced, &threads_});
  }

  task<> parts_of_batch(gpumem::scope<pool_type> work, std::size_t i) {
    std::array<gpumem::allocation, shares.size()> parts;
    for (std::size_t at = 0; at < parts.size(); ++at) {
      parts[at] = co_await work.acquire(streams_[i], part_of(batches_[i], at), {.resume_on = &threads_});
      co_await kernel_on(streams_[i], parts[at].data(), parts[at].bytes());
    }
  }

  task<> wait_for_batch(pool_type& pool, std::size_t i, std::atomic<std::size_t>& again) {
    gpumem::scope work{pool, "batch " + std::to_string(i)};
    co_await gpumem::with_retry(work, [this, work, i] { return parts_of_batch(work, i); }, [&] { ++again; }, &threads_);
  }

  task<> work_in_slot(std::byte* memory, std::size_t slot, std::atomic<std::size_t>& next) {
    for (auto i = next++; i < batches_.size(); i = next++) {
      std::size_t offset = 0;
      for (std::size_t at = 0; at < shares.size(); ++at) {
        co_await kernel_on(streams_[slot], memory + offset, part_of(batches_[i], at));
        offset += part_of(batches_[i], at);
      }
    }
  }

  bool try_batch(pool_type& pool, std::size_t i) {
    std::array<gpumem::allocation, shares.size()> parts;
    for (std::size_t at = 0; at < parts.size(); ++at) {
      auto got = pool.acquire(streams_[i], part_of(batches_[i], at)).try_now();
      if (!got) return false;
      parts[at] = std::move(*got);
      kernel_.launch(streams_[i], parts[at].data(), parts[at].bytes());
      gpumem::completion(streams_[i]).wait();
    }
    return true;
  }

  gpumem::device device_;
  setting with_;
  std::vector<std::size_t> batches_;
  replay::work_kernel kernel_;
  gpumem::thread_pool_executor threads_;
  std::vector<gpumem::stream> streams_;
};

outcome_of_run median(std::vector<outcome_of_run> runs) {
  std::ranges::sort(runs, {}, &outcome_of_run::seconds);
  return runs[runs.size() / 2];
}

// The ways alternate, since the speed of a machine changes from minute to minute.
void run(bench& all, setting const& with, bool times) {
  std::vector<outcome_of_run> waiting, throwing;
  std::map<std::size_t, std::vector<outcome_of_run>> slots;
  for (unsigned round = 0; round <= with.rounds; ++round) {
    auto const one = all.waiting(), other = all.throwing();
    if (round > 0) waiting.push_back(one), throwing.push_back(other); // the first round warms up
    for (std::size_t n = 1; n <= most_slots; ++n) {
      auto const seen = all.partition(n);
      if (seen && round > 0) slots[n].push_back(*seen);
    }
  }
  auto const shown = [times](char const* name, outcome_of_run const& seen) {
    if (times) std::printf("%-28s %8.1f ms", name, seen.seconds * 1e3);
    if (!times) std::printf("%-28s", name);
    std::printf(" %8zu restarts\n", seen.again);
  };
  shown("tasks that wait", median(waiting));
  std::optional<outcome_of_run> best;
  for (auto const& [n, runs] : slots) {
    auto const seen = median(runs);
    shown(("partition of " + std::to_string(n) + " slots").c_str(), seen);
    if (!best || seen.seconds < best->seconds) best = seen;
  }
  shown("tasks that restart", median(throwing));
  if (times && best) {
    std::printf("waiting / best partition %.2f, waiting / restarting %.2f\n", median(waiting).seconds / best->seconds,
                median(waiting).seconds / median(throwing).seconds);
  }
}

} // namespace

int main(int count, char** arguments) {
  CLI::App app{"Compares ways to run tasks that together need four times the available memory.",
               "gpumem-waiting-bench"};
  replay::declare_version(app);
  std::map<std::string, replay::device_choice> const devices{{"auto", replay::device_choice::automatic},
                                                             {"cuda", replay::device_choice::cuda},
                                                             {"simulated", replay::device_choice::simulated}};
  auto choice = replay::device_choice::automatic;
  setting with;
  app.add_option("--device", choice, "cuda, simulated or auto")->transform(CLI::CheckedTransformer(devices));
  app.add_option("--tasks", with.tasks, "number of tasks")->check(CLI::Range(1, 10'000));
  app.add_option("--limit", with.limit, "bytes that all tasks share, 1 MiB at least")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::size_t{1} << 20, std::size_t{1} << 50));
  app.add_option("--sigma", with.sigma, "standard deviation of the logarithm of batch sizes")
      ->check(CLI::Range(0.0, 10.0));
  app.add_option("--kernel", with.kernel_microseconds, "microseconds per kernel")->check(CLI::Range(0.001, 1e6));
  app.add_option("--rounds", with.rounds, "number of measured rounds")->check(CLI::Range(1, 1'000));
  app.add_option("--seed", with.seed, "seed of the batch sizes");
  CLI11_PARSE(app, count, arguments);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); // streams that share a hardware queue wait for each other's kernels
  try {
    auto const where = replay::choose_device(choice);
    bench all{where.device, with};
    std::printf("%s; %zu tasks, the largest batch %.0f %% of the memory\n", where.name.c_str(), with.tasks,
                100. * static_cast<double>(all.largest()) / static_cast<double>(with.limit));
    run(all, with, !where.simulated);
    return 0;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem-waiting-bench: %s\n", error.what());
    return 1;
  }
}
