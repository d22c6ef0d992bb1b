// Rows of one thread: the mean cost of a call, and the quantiles of single calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "context.hpp"
#include "metrics.hpp"
#include "thread_team.hpp"
#include "workload.hpp"

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda.h>

namespace bench {

/// Allocates and frees one block of one size, repeatedly.
template <class Resource>
void one_size(benchmark::State& state, context& with, Resource& resource, gpumem::stream_ref stream,
              std::size_t bytes) {
  auto const once = [&] {
    auto const got = resource.try_allocate(stream, bytes);
    if (!got) [[unlikely]]
      throw std::runtime_error("no memory");
    resource.deallocate(stream, *got, bytes);
  };
  measure(state, with, 1, [&](std::size_t operations) {
    return seconds_of([&] {
      for (std::size_t i = 0; i < operations; i += 2) once();
    });
  });
}

/// The same with `co_await` while the pool has free memory.
template <class Resource>
void awaited(benchmark::State& state, context& with, Resource& resource, gpumem::stream_ref stream, std::size_t bytes) {
  measure(state, with, 1, [&](std::size_t operations) {
    auto const all = [&]() -> gpumem::task<> {
      for (std::size_t i = 0; i < operations; i += 2) [[maybe_unused]]
        auto const block = co_await resource.acquire(stream, bytes);
    };
    return seconds_of([&] { gpumem::sync_wait(all()); });
  });
}

/// Calls the two driver functions that identify a raw stream handle, once per operation.
inline void stream_queries(benchmark::State& state, context& with, gpumem::stream_ref stream) {
  measure(state, with, 1, [&](std::size_t operations) {
    unsigned long long id = 0;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return seconds_of([&] {
      for (std::size_t i = 0; i < operations; ++i) {
        gpumem::driver_api::check(gpumem::driver_api::driver().stream_get_id(stream.get(), &id), "cuStreamGetId");
        gpumem::driver_api::check(gpumem::driver_api::driver().stream_is_capturing(stream.get(), &status),
                                  "cuStreamIsCapturing");
      }
    });
  });
}

/// Random replacement among `slots` live blocks.
template <class Resource>
void live(benchmark::State& state, context& with, Resource& resource, std::size_t slots, size_distribution sizes,
          std::size_t streams) {
  auto const workload = make_workload(1, slots, streams, sizes);
  live_set<Resource, gpumem::stream> blocks{resource, with.first(streams), slots};
  blocks.fill(workload);
  measure(state, with, 1, [&](std::size_t operations) {
    return seconds_of([&] {
      for (std::size_t i = 0; i < operations / 2; ++i) blocks.replace(workload[i % workload.size()]);
    });
  });
  auto const reserved = resource.statistics().peak_reserved;
  if (reserved) {
    record(state, metric::filled_by_reserved,
           static_cast<double>(blocks.filled_bytes()) / static_cast<double>(reserved));
  }
}

/// Nanoseconds of single calls, without the time that reading the clock takes.
class call_latencies {
public:
  explicit call_latencies(std::size_t calls) { taken_.reserve(calls); }

  template <class Call> inline void time(Call const& call) {
    auto const begin = clock::now();
    call();
    taken_.push_back(std::chrono::duration<double, std::nano>(clock::now() - begin).count());
  }
  double quantile(double part) {
    std::ranges::sort(taken_);
    auto const last = static_cast<double>(taken_.size() - 1);
    return std::max(0.0, taken_[static_cast<std::size_t>(part * last)] - cost_of_clock());
  }

private:
  static double cost_of_clock() {
    call_latencies empty{10'001};
    for (int i = 0; i < 10'001; ++i) empty.time([] {});
    std::ranges::sort(empty.taken_);
    return empty.taken_[empty.taken_.size() / 2];
  }
  std::vector<double> taken_;
};

/// The distribution of the times of single calls, with 1,000 live blocks.
template <class Resource>
void call_distribution(benchmark::State& state, context& with, Resource& resource, size_distribution sizes,
                       std::size_t streams) {
  constexpr std::size_t slots = 1'000;
  auto const workload = make_workload(2, slots, streams, sizes);
  live_set<Resource, gpumem::stream> blocks{resource, with.first(streams), slots};
  blocks.fill(workload);
  for (std::size_t i = 0; i < with.operations / 2; ++i) blocks.replace(workload[i % workload.size()]);
  call_latencies allocations{with.operations / 2}, frees{with.operations / 2};
  for (auto _ : state) {
    state.SetIterationTime(seconds_of([&] {
      for (std::size_t i = 0; i < with.operations / 2; ++i) {
        auto const& next = workload[i % workload.size()];
        frees.time([&] { blocks.free_one(next.slot); });
        allocations.time([&] { blocks.allocate_one(next); });
      }
    }));
  }
  auto const record_quantiles = [&](metric first, call_latencies& times) {
    auto which = static_cast<unsigned char>(first);
    for (double const part : {.5, .99, .999, 1.}) record(state, static_cast<metric>(which++), times.quantile(part));
  };
  record_quantiles(metric::alloc_p50, allocations);
  record_quantiles(metric::free_p50, frees);
}

} // namespace bench
