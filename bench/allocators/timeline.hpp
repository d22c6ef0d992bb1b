// What an allocator does to the device: kernels that take, use and give back memory, against the same kernels on memory
// allocated before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "context.hpp"
#include "team.hpp"
#include "traffic.hpp"

#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

namespace bench {

constexpr std::size_t timeline_steps = 2'000;
constexpr mix timeline_sizes{std::size_t{256} << 10, std::size_t{64} << 20};

/// Each step allocates on one of the streams, runs a kernel there and frees. `warm`: a stretch in the middle of
/// several, against one of as many without a resource between them; `cold`: the first stretch; `cold_reserved`: the
/// first of another resource that has reserved memory before, where it can.
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
    auto resource = make(with.device);
    auto const cold = over(resource);
    over(resource);
    std::vector<double> bare_took, took;
    for (int i = 0; i < 5; ++i) {
      bare_took.push_back(bare());
      took.push_back(over(resource));
    }
    ahead.deallocate_sync(memory, 4096);
    auto const reference = replay::median(std::move(bare_took));
    auto const warm = replay::median(std::move(took));
    state.SetIterationTime(warm);
    state.counters["cold"] = cold / reference;
    state.counters["warm"] = warm / reference;
    state.counters["reserved_MiB"] = static_cast<double>(resource.figures().peak_reserved) / (1 << 20);
    auto spacious = make(with.device);
    if constexpr (requires { spacious.reserve(1); }) {
      spacious.reserve(4 * streams * timeline_sizes.largest);
      state.counters["cold_reserved"] = over(spacious) / reference;
    }
  }
}

} // namespace bench
