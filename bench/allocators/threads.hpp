// Rows of several threads: each on its own stream, all on one stream, and pairs where one frees the other's blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "context.hpp"
#include "producer_consumer.hpp"
#include "thread_team.hpp"
#include "workload.hpp"

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <vector>

namespace bench {

constexpr std::size_t thread_slots = 200;
constexpr size_distribution thread_sizes{256, std::size_t{1} << 20};

/// Each thread replaces random blocks of its own. Each thread has its own stream, or all share the first.
template <class Resource>
void threads(benchmark::State& state, context& with, Resource& resource, std::size_t count, bool one_stream) {
  measure(state, with, count, [&](std::size_t operations) {
    return run_together(count, [&](std::size_t number) {
      auto const stream = with.first(one_stream ? 1 : count).subspan(one_stream ? 0 : number, 1);
      auto workload = make_workload(number + 1, thread_slots, 1, thread_sizes, std::size_t{1} << 14);
      auto blocks = std::make_unique<live_set<Resource, gpumem::stream>>(resource, stream, thread_slots);
      blocks->fill(workload);
      for (auto const& each : workload) blocks->replace(each);
      return [operations, workload = std::move(workload), blocks = std::move(blocks)] {
        for (std::size_t i = 0; i < operations / 2; ++i) blocks->replace(workload[i % workload.size()]);
      };
    });
  });
}

/// Pairs of threads: one allocates on its stream, the other frees on its own stream.
template <class Resource>
void producer_consumer_pairs(benchmark::State& state, context& with, Resource& resource, std::size_t pairs) {
  auto const workload = make_workload(3, thread_slots, 1, thread_sizes, std::size_t{1} << 14);
  auto const produce = [&](producer_consumer& queue, gpumem::stream const& on, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      auto const bytes = workload[i % workload.size()].bytes;
      auto const got = resource.try_allocate(on, bytes);
      queue.push({got ? *got : nullptr, bytes}, on);
    }
  };
  auto const consume = [&](producer_consumer& queue, gpumem::stream const& on, std::size_t count) {
    bool lacking = false;
    for (std::size_t i = 0; i < count; ++i) {
      auto const block = queue.pop(on);
      if (block.pointer) resource.deallocate(on, block.pointer, block.bytes);
      lacking = lacking || !block.pointer;
    }
    if (lacking) throw std::runtime_error("no memory");
  };
  measure(state, with, 2 * pairs, [&](std::size_t operations) {
    auto const count =
        (operations + producer_consumer::batch - 1) / producer_consumer::batch * producer_consumer::batch;
    std::vector<std::unique_ptr<producer_consumer>> queues;
    for (std::size_t i = 0; i < pairs; ++i) queues.push_back(std::make_unique<producer_consumer>(with.device));
    auto const took = run_together(2 * pairs, [&](std::size_t number) {
      return [&, number, count] {
        auto const& on = with.streams[number];
        number % 2 == 0 ? produce(*queues[number / 2], on, count) : consume(*queues[number / 2], on, count);
      };
    });
    return took * static_cast<double>(operations) / static_cast<double>(count);
  });
}

} // namespace bench
