// The table of resources; the timed loops over each resource are instantiated here.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>
module replay:resources.impl;
import gpumem;
import peers;
import :resources;
import :measure;
import :options;
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
  static constexpr resource_name name{"binning", true, true};
  auto operator()(gpumem::device device, std::uint64_t limit_bytes) const {
    gpumem::pool_options options;
    options.limit = limit_bytes;
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

struct make_peer {
  peers::gpumem_peer const* table;
  peers::peer_resource operator()(gpumem::device device, std::uint64_t /*no limit*/) const { return {*table, device}; }
};

struct resource_entry {
  resource_name name;
  std::function<result(run_config const&)> measure;
};

template <class Make> resource_entry entry_of(resource_name name, Make make) {
  return {name, [make](run_config const& what) { return measure(what, make); }};
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
      entry_of(make_binning::name, make_binning{}),
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

result measure_by_name(run_config const& what) {
  auto const& table = detail::resource_table();
  auto const found = std::ranges::find(table, what.resource, [](auto const& entry) { return entry.name.name; });
  if (found == table.end()) throw std::logic_error("no resource " + std::string(what.resource));
  return found->measure(what);
}

} // namespace replay
