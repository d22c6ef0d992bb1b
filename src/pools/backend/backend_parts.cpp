// The objects that a pool uses to get memory from its upstream, as pages or as chunks.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <optional>
module gpumem:backend_parts.impl;
import :backend_parts;
import :chunk_list;
import :cuda;
import :device;
import :error;
import :growth_policy;
import :page_store;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :reuse_rules;
import :shard_list;
import :virtual_pages;

namespace gpumem::detail {
namespace {

std::optional<device> device_of(pool_upstream const& upstream) {
  auto const ordinal = upstream.device();
  return ordinal < 0 ? std::nullopt : std::optional{device{ordinal}};
}

} // namespace

backend_parts::backend_parts(pool_upstream& from, pool_options const& asked, reuse_rules& reuse, chunk_list& all,
                             shard_list& pool, reserved_observer& watcher)
    : upstream{from}, options{asked}, where{device_of(from)}, rules{reuse}, chunks{all}, shards{pool},
      observer{watcher},
      growth{all, pool, reuse, from.paged() ? std::max(smallest_page, from.pages()->granularity()) : smallest_page},
      lock{pool} {}

void backend_parts::note_failure(failure const& why) const noexcept {
  if (where && why.reason == outcome::device_lost) where->mark_lost(static_cast<CUresult>(why.code));
}

void backend_parts::count_growth(pool_shard& into, std::size_t bytes) noexcept {
  into.reserved += bytes;
  ++into.counts.upstream_allocations;
  observer.on_reserved_changed();
}

} // namespace gpumem::detail
