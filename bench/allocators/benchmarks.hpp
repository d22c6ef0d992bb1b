// The list of workloads, and the registration of one row per workload for a resource.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "call_latency.hpp"
#include "context.hpp"
#include "threads.hpp"
#include "kernel_overlap.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <exception>
#include <string>

namespace bench {

/// Registers every workload for the resource that `make(device)` returns, named workload/resource.
template <class Make> class benchmarks {
public:
  benchmarks(std::string name, context& with, Make make)
      : name_{std::move(name)}, with_{&with}, make_{std::move(make)} {}

  void add_all() const {
    add_calls();
    add_threads();
    if (!with_->simulated) add_kernel_overlaps(); // the simulated device runs no kernels
  }

  /// Registers only the rows of one size that thread caches serve: they show what an adaptor adds to a call.
  void add_hits() const {
    add_small_hits();
    add_size("1MiB", mib);
  }
  void add_small_hits() const { add_size("256B", 256); }

private:
  static constexpr std::size_t kib = 1024, mib = kib * kib;

  // Registers a row that makes a resource of its own.
  template <class Row> void add(std::string const& workload, int repeat, Row const& row) const {
    auto const guarded = [row, with = with_, make = make_](benchmark::State& state) {
      try {
        auto resource = make(with->device);
        row(state, *with, resource);
        with->synchronize();
      } catch (std::exception const& error) { state.SkipWithError(error.what()); }
    };
    benchmark::RegisterBenchmark((workload + "/" + name_).c_str(), guarded)->UseManualTime()->Iterations(repeat);
  }

  void add_size(char const* text, std::size_t bytes) const {
    add(std::string{"one_size_"} + text, 5,
        [=](auto& state, auto& with, auto& from) { one_size(state, with, from, with.streams.front(), bytes); });
  }

  void add_calls() const {
    add_hits();
    add_size("64KiB", 64 * kib), add_size("16MiB", 16 * mib), add_size("256MiB", 256 * mib);
    if constexpr (requires(decltype(make_(with_->device))& from) { from.acquire(with_->streams.front(), kib); }) {
      add("awaited_256B", 5,
          [](auto& state, auto& with, auto& from) { awaited(state, with, from, with.streams.front(), 256); });
    }
    add("one_size_1MiB_raw_stream", 5, [](auto& state, auto& with, auto& from) {
      replay::stream_set const foreign{with.device, 1, true};
      one_size(state, with, from, foreign.refs().front(), mib);
      foreign.synchronize();
    });
    auto const blocks = [&](char const* text, std::size_t slots, size_distribution sizes, std::size_t streams) {
      add(text, 5, [=](auto& state, auto& with, auto& from) { live(state, with, from, slots, sizes, streams); });
    };
    blocks("live_1000_small", 1'000, {256, 64 * kib}, 1);
    blocks("live_1000_mixed", 1'000, {256, 64 * mib}, 1);
    blocks("live_1000_mixed_8_streams", 1'000, {256, 64 * mib}, 8);
    blocks("live_50000", 50'000, {256, mib}, 1);
    add("call_times", 1,
        [](auto& state, auto& with, auto& from) { call_distribution(state, with, from, {256, 64 * mib}, 1); });
  }

  void add_threads() const {
    for (std::size_t const count : {1, 4, 16}) {
      add("threads_" + std::to_string(count) + "_own_streams", 3,
          [=](auto& state, auto& with, auto& from) { threads(state, with, from, count, false); });
    }
    for (std::size_t const count : {2, 16}) {
      add("threads_" + std::to_string(count) + "_one_stream", 3,
          [=](auto& state, auto& with, auto& from) { threads(state, with, from, count, true); });
      add("producer_consumer_" + std::to_string(count), 3,
          [=](auto& state, auto& with, auto& from) { producer_consumer_pairs(state, with, from, count / 2); });
    }
  }

  void add_kernel_overlaps() const {
    for (std::size_t const streams : {4, 16}) {
      for (int const microseconds : {20, 200}) {
        add("kernels_" + std::to_string(streams) + "x" + std::to_string(microseconds) + "us", 1,
            [=, make = make_](auto& state, auto& with, auto&) {
              kernel_overlap(state, with, make, streams, microseconds);
            });
      }
    }
  }

  std::string name_;
  context* with_;
  Make make_;
};

} // namespace bench
