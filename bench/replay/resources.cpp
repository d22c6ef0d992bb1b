// The table of resources; the loops over each are compiled here.
// SPDX-License-Identifier: Apache-2.0
module;

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

module replay:resources.impl;

import gpumem;
import :accounted_resource;
import :measure;
import :options;
import :resources;
import :result;
import :stage;

namespace replay {

namespace detail {

struct make_cuda {
  static constexpr resource_name name{"cuda", false};
  accounted_resource<gpumem::cuda_resource> operator()(gpumem::device device, std::uint64_t /*no limit*/) const {
    return accounted_resource{gpumem::cuda_resource{device}};
  }
};

struct make_pool {
  static constexpr resource_name name{"pool", true};
  auto operator()(gpumem::device device, std::uint64_t limit_bytes) const {
    gpumem::pool_options options;
    options.limit = limit_bytes;
    return gpumem::pool_resource{gpumem::cuda_resource{device}, options};
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

struct resource_entry {
  resource_name name;
  result (*measure)(assignment const&);
};

template <class Make>
inline constexpr resource_entry entry_of{Make::name, [](assignment const& what) { return measure(what, Make{}); }};

// All that can be replayed over: one line each.
inline constexpr std::array resource_table{entry_of<make_cuda>, entry_of<make_pool>, entry_of<make_async>};

} // namespace detail

std::vector<resource_name> resource_names() {
  std::vector<resource_name> names;
  for (detail::resource_entry const& entry : detail::resource_table) names.push_back(entry.name);
  return names;
}

result measure_by_name(assignment const& what) {
  auto const found =
      std::find_if(detail::resource_table.begin(), detail::resource_table.end(),
                   [&](detail::resource_entry const& entry) { return entry.name.name == what.resource; });
  if (found == detail::resource_table.end()) throw std::logic_error("no resource " + std::string(what.resource));
  return found->measure(what);
}

} // namespace replay
