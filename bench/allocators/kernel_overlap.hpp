// How an allocator delays the device: kernels on memory that is allocated and freed around each, compared with the same
// kernels on memory allocated beforehand.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "context.hpp"
#include "metrics.hpp"
#include "thread_team.hpp"
#include "workload.hpp"

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

constexpr std::size_t overlap_steps = 2'000;
constexpr size_distribution overlap_sizes{std::size_t{256} << 10, std::size_t{64} << 20};

/// Each step allocates on one of the streams, runs a kernel there and frees. Each metric is a median of `often`
/// samples, divided by the median of the same samples without a resource. `warm`: one resource that has run twice
/// before. `after_pause`: that resource after a second without calls. `cold`: the first sample of a new resource.
/// `cold_reserved`: the same after `reserve`, for resources that have it.
template <class Make>
void kernel_overlap(benchmark::State& state, context& with, Make const& make, std::size_t streams,
                    double microseconds) {
  replay::work_kernel const kernel{with.device, microseconds};
  auto const workload = make_workload(4, 1, streams, overlap_sizes, overlap_steps);
  auto const sample = [&](auto const& step) {
    return seconds_of([&] {
      for (auto const& each : workload) step(each);
      with.synchronize();
    });
  };
  for (auto _ : state) {
    gpumem::cuda_resource const plain{with.device};
    auto ahead = plain;
    auto* const memory = ahead.allocate_sync(4096);
    auto const bare = [&] {
      return sample([&](replacement const& each) { kernel.launch(with.streams[each.stream], memory, 4); });
    };
    bare();
    auto const over = [&](auto& resource) {
      return sample([&](replacement const& each) {
        auto const& stream = with.streams[each.stream];
        auto const got = resource.try_allocate(stream, each.bytes);
        if (!got) throw std::runtime_error("no memory");
        kernel.launch(stream, *got, each.bytes);
        resource.deallocate(stream, *got, each.bytes);
      });
    };
    constexpr int often = 5;
    std::vector<double> bare_took, warm_took, paused_took, cold_took, reserved_took;
    auto resource = make(with.device);
    over(resource);
    over(resource);
    for (int i = 0; i < often; ++i) {
      bare_took.push_back(bare());
      warm_took.push_back(over(resource));
      std::this_thread::sleep_for(std::chrono::seconds{1});
      paused_took.push_back(over(resource));
      auto fresh = make(with.device);
      cold_took.push_back(over(fresh));
      if constexpr (requires { fresh.reserve(1); }) {
        auto spacious = make(with.device);
        spacious.reserve(4 * streams * overlap_sizes.largest);
        reserved_took.push_back(over(spacious));
      }
    }
    ahead.deallocate_sync(memory, 4096);
    auto const reference = replay::median(std::move(bare_took));
    auto const warm = replay::median(std::move(warm_took));
    state.SetIterationTime(warm);
    record(state, metric::cold, replay::median(std::move(cold_took)) / reference);
    record(state, metric::warm, warm / reference);
    record(state, metric::after_pause, replay::median(std::move(paused_took)) / reference);
    record(state, metric::reserved_mib, static_cast<double>(resource.statistics().peak_reserved) / (1 << 20));
    if (!reserved_took.empty()) {
      record(state, metric::cold_reserved, replay::median(std::move(reserved_took)) / reference);
    }
  }
}

} // namespace bench
