// The table of resources; the timed loops over each resource are instantiated here.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>
module replay:resources.impl;
import gpumem;
import peers;
import :resources;
import :measure;
import :options;
import :pass;
import :plan;
import :replay_session;
import :result;

namespace replay {

namespace detail {

struct make_cuda {
  static constexpr resource_name name{"cuda", false};
  accounted_resource<gpumem::cuda_resource> operator()(gpumem::device device, std::uint64_t /*no limit*/) const {
    return accounted_resource{gpumem::cuda_resource{device}};
  }
};

struct make_pool {
  double effort = gpumem::pool_options{}.effort;
  auto operator()(gpumem::device device, std::uint64_t limit_bytes) const {
    gpumem::pool_options options;
    options.limit = limit_bytes;
    options.effort = effort;
    return gpumem::pool_resource{device, options};
  }
};

struct make_chunk_pool {
  static constexpr resource_name name{"pool_chunks", true};
  auto operator()(gpumem::device device, std::uint64_t limit_bytes) const {
    gpumem::pool_options options;
    options.limit = limit_bytes;
    return gpumem::pool_resource{gpumem::cuda_resource{device}, options};
  }
};

struct make_arena {
  static constexpr resource_name name{"arena", true};
  auto operator()(gpumem::device device, std::uint64_t limit_bytes) const {
    gpumem::arena_options options;
    options.pool.limit = limit_bytes;
    options.arena_size = limit_bytes ? std::min<std::uint64_t>(options.arena_size, limit_bytes) : options.arena_size;
    return gpumem::arena_resource{gpumem::cuda_resource{device}, options};
  }
};

// Bins of 256 KiB to 4 MiB over a pool, as RMM's benchmark has them.
struct make_binning {
  double effort = gpumem::pool_options{}.effort;
  auto operator()(gpumem::device device, std::uint64_t limit_bytes) const {
    gpumem::pool_options options;
    options.limit = limit_bytes;
    options.effort = effort;
    gpumem::binning_options bins{.min_exponent = 18, .max_exponent = 22};
    if (limit_bytes) bins.blocks_per_chunk = 8;
    return gpumem::binning_resource{gpumem::pool_resource{device, options}, bins};
  }
};

struct make_async {
  static constexpr resource_name name{"async", true};
  auto operator()(gpumem::device device, std::uint64_t limit_bytes) const {
    gpumem::async_options options;
    options.limit = limit_bytes;
    return gpumem::async_resource{device, options};
  }
};

struct make_fixed {
  fixed_blocks blocks;
  auto operator()(gpumem::device device, std::uint64_t limit_bytes) const {
    gpumem::fixed_size_options options{.block_size = blocks.bytes, .blocks_per_chunk = blocks.count};
    options.pool.limit = limit_bytes;
    return gpumem::fixed_size_resource{gpumem::cuda_resource{device}, options};
  }
};

struct make_peer {
  peers::gpumem_peer const* table;
  peers::peer_resource operator()(gpumem::device device, std::uint64_t /*no limit*/) const { return {*table, device}; }
};

// Notes the first request that fails, and ends the pass there.
struct failure_watch {
  struct request_failed {};
  operation const* first;
  std::optional<std::size_t> failed;

  inline void before(operation const&) noexcept {}
  inline void after(operation const& next, void* block) {
    if (!next.allocates || block != nullptr || next.bytes == 0) return;
    failed = static_cast<std::size_t>(&next - first);
    throw request_failed{};
  }
};

template <class Make> counted_pass count(run_config const& what, Make const& make) {
  plan const& operations = what.trace->operations;
  std::uint64_t const limit = what.chosen->limit ? what.chosen->limit->of(operations.peak_live_bytes) : 0;
  replay_session on{what};
  auto resource = make(what.where->device, limit);
  failure_watch watch{operations.operations.data(), {}};
  std::uint64_t const unmapped = gpumem::driver_api::driver_calls("cuMemUnmap");
  std::uint64_t const before = memory_calls();
  pass_cost const cost = on.run("one pass", [&](replay_session::member mine) {
    try {
      run_pass(resource, operations, mine.streams, mine.state, watch);
    } catch (failure_watch::request_failed const&) {
      // the pass has ended
    }
  });
  counted_pass const counted{.peak_reserved = resource.statistics().peak_reserved,
                             .driver_calls = cost.driver_calls,
                             .memory_calls = memory_calls() - before,
                             .unmapped = gpumem::driver_api::driver_calls("cuMemUnmap") - unmapped,
                             .failed = watch.failed};
  if (!counted.failed) clear_pass(resource, operations, on);
  return counted;
}

struct resource_entry {
  resource_name name;
  std::function<result(run_config const&)> measure;
  std::function<counted_pass(run_config const&)> count;
};

// `make_for` returns how the resource is made for a trace.
template <class MakeFor> resource_entry entry_for(resource_name name, MakeFor make_for) {
  return {name, [make_for](run_config const& what) { return measure(what, make_for(what.trace->operations)); },
          [make_for](run_config const& what) { return count(what, make_for(what.trace->operations)); }};
}

template <class Make> resource_entry entry_of(resource_name name, Make make) {
  return entry_for(name, [make](plan const&) { return make; });
}

// All resources that can be replayed, one line each; the peers of --peer follow.
std::vector<resource_entry>& resource_table() {
  static std::vector<resource_entry> table{
      entry_of(make_cuda::name, make_cuda{}),
      entry_of({"pool", true, true}, make_pool{}),
      entry_of({"pool_effort_0", true}, make_pool{.effort = 0}),
      entry_of({"pool_effort_1", true}, make_pool{.effort = 1}),
      entry_of(make_chunk_pool::name, make_chunk_pool{}),
      entry_of(make_async::name, make_async{}),
      entry_of(make_arena::name, make_arena{}),
      entry_of({"binning", true, true}, make_binning{}),
      entry_of({"binning_effort_1", true, false, false}, make_binning{.effort = 1}),
      entry_for({"fixed", true, false, false}, [](plan const& of) { return make_fixed{fixed_blocks_of(of)}; }),
      entry_of({peers::driver_pool().name, false}, make_peer{&peers::driver_pool()}),
  };
  return table;
}

} // namespace detail

void add_peers(std::vector<std::string> const& libraries) {
  for (auto const& library : libraries) {
    for (auto const* each : peers::load_peers(library)) {
      detail::resource_table().push_back(detail::entry_of({each->name, false}, detail::make_peer{each}));
    }
  }
}

std::vector<resource_name> resource_names() {
  std::vector<resource_name> names;
  for (detail::resource_entry const& entry : detail::resource_table()) names.push_back(entry.name);
  return names;
}

namespace detail {
resource_entry const& find_entry(std::string_view name) {
  auto const& table = resource_table();
  auto const found = std::ranges::find(table, name, [](auto const& entry) { return entry.name.name; });
  if (found == table.end()) throw std::logic_error("no resource " + std::string(name));
  return *found;
}
} // namespace detail

result measure_by_name(run_config const& what) { return detail::find_entry(what.resource).measure(what); }

std::uint64_t memory_calls() {
  static constexpr std::array<std::string_view, 11> names{
      "cuMemAlloc", "cuMemFree",  "cuMemAllocFromPoolAsync", "cuMemFreeAsync",      "cuMemCreate",     "cuMemRelease",
      "cuMemMap",   "cuMemUnmap", "cuMemSetAccess",          "cuMemAddressReserve", "cuMemAddressFree"};
  std::uint64_t sum = 0;
  for (std::string_view const name : names) sum += gpumem::driver_api::driver_calls(name);
  return sum;
}

counted_pass count_pass(run_config const& what) { return detail::find_entry(what.resource).count(what); }

fixed_blocks fixed_blocks_of(plan const& of) {
  std::uint64_t largest = 1;
  for (operation const& each : of.operations) largest = std::max(largest, each.bytes);
  return {.bytes = largest, .count = std::max<std::uint64_t>(of.blocks, 1)};
}

} // namespace replay
