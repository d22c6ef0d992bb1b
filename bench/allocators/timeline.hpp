// What an allocator does to the device: kernels that take, use and give back memory, against the same kernels on memory
// allocated before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "context.hpp"
#include "figures.hpp"
#include "team.hpp"
#include "traffic.hpp"

#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

namespace bench {

constexpr std::size_t timeline_steps = 2'000;
constexpr mix timeline_sizes{std::size_t{256} << 10, std::size_t{64} << 20};

/// Each step allocates on one of the streams, runs a kernel there and frees. Each figure is a median, against that of
/// as many stretches without a resource between them. `warm`: of one resource after its first; `cold`: of the first
/// stretches of some; `cold_reserved`: the same where they have reserved memory before, if they can.
template <class Make>
void timeline(benchmark::State& state, context& with, Make const& make, std::size_t streams, double microseconds) {
  replay::work_kernel const kernel{with.device, microseconds};
  auto const traffic = draw_traffic(4, 1, streams, timeline_sizes, timeline_steps);
  auto const stretch = [&](auto const& step) {
    return seconds_of([&] {
      for (auto const& each : traffic) step(each);
      with.synchronize();
    });
  };
  for (auto _ : state) {
    gpumem::cuda_resource const plain{with.device};
    auto ahead = plain;
    auto* const memory = ahead.allocate_sync(4096);
    auto const bare = [&] {
      return stretch([&](replacement const& each) { kernel.launch(with.streams[each.stream], memory, 4); });
    };
    bare();
    auto const over = [&](auto& resource) {
      return stretch([&](replacement const& each) {
        auto const& stream = with.streams[each.stream];
        auto const got = resource.try_allocate(stream, each.bytes);
        if (!got) throw std::runtime_error("no memory");
        kernel.launch(stream, *got, each.bytes);
        resource.deallocate(stream, *got, each.bytes);
      });
    };
    constexpr int often = 5;
    std::vector<double> bare_took, warm_took, cold_took, reserved_took;
    auto resource = make(with.device);
    over(resource);
    over(resource);
    for (int i = 0; i < often; ++i) {
      bare_took.push_back(bare());
      warm_took.push_back(over(resource));
      auto fresh = make(with.device);
      cold_took.push_back(over(fresh));
      if constexpr (requires { fresh.reserve(1); }) {
        auto spacious = make(with.device);
        spacious.reserve(4 * streams * timeline_sizes.largest);
        reserved_took.push_back(over(spacious));
      }
    }
    ahead.deallocate_sync(memory, 4096);
    auto const reference = replay::median(std::move(bare_took));
    auto const warm = replay::median(std::move(warm_took));
    state.SetIterationTime(warm);
    note(state, figure::cold, replay::median(std::move(cold_took)) / reference);
    note(state, figure::warm, warm / reference);
    note(state, figure::reserved_mib, static_cast<double>(resource.figures().peak_reserved) / (1 << 20));
    if (!reserved_took.empty()) {
      note(state, figure::cold_reserved, replay::median(std::move(reserved_took)) / reference);
    }
  }
}

} // namespace bench
