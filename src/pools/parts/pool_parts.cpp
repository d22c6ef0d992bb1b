// The parts of a pool, made from its options, and the checks of the options.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
module gpumem:pool_parts.impl;
import :pool_parts;
import :block;
import :chunk_list;
import :device;
import :page_backend;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :reuse_rules;
import :shard_list;
import :thread_caches;
import :timer;

namespace gpumem::detail {
namespace {

// Throws std::invalid_argument if guard, poison or history is so large that a sum with a block's size could overflow.
void check_hardening(hardening_options const& options, std::size_t limit) {
  constexpr std::size_t max_bytes = std::size_t{1} << 30, max_events = std::size_t{1} << 24;
  hardening_options const usual;
  bool const changed = options.guard != usual.guard || options.quarantine != usual.quarantine ||
                       options.poison != usual.poison || options.history != usual.history;
  if (!options.enabled && changed) {
    throw std::invalid_argument{
        "gpumem: a pool that is not hardened has neither guard, quarantine, poison nor history"};
  }
  if (options.guard > max_bytes || options.poison > max_bytes || options.history > max_events) {
    throw std::invalid_argument{
        "gpumem: a pool's guard and poison must each be 1 GiB at most, and its history 16,777,216 events"};
  }
  if (options.enabled && limit && limit / granule * granule <= guard_bytes(options)) {
    throw std::invalid_argument{"gpumem: a hardened pool's limit leaves no room between two guards"};
  }
}

void check_blocks(pool_options const& options) {
  for (auto const bytes : {options.chunk_size, options.smallest_block, options.largest_block}) {
    if (bytes > PTRDIFF_MAX / 2)
      throw std::invalid_argument{
          "gpumem: a pool's chunks and blocks must be less than a quarter of the address space"};
  }
  if (options.largest_block && options.smallest_block > options.largest_block)
    throw std::invalid_argument{"gpumem: a pool's smallest_block is larger than its largest_block"};
  if (options.limit && std::max(options.smallest_block, options.chunk_size) > options.limit)
    throw std::invalid_argument{"gpumem: a pool's smallest_block and chunk_size must not exceed its limit"};
}

pool_options checked_options(pool_options options, bool paged) {
  if (options.cross_stream > reuse_policy::wait)
    throw std::invalid_argument{"gpumem: a pool's cross_stream is unknown"};
  if (options.limit && options.initial_size > options.limit) {
    throw std::invalid_argument{
        "gpumem: a pool's initial_size is larger than its limit: " + std::to_string(options.initial_size) + " > " +
        std::to_string(options.limit) + " bytes"};
  }
  if (options.initial_size > PTRDIFF_MAX) {
    throw std::invalid_argument{"gpumem: a pool's initial_size must be less than half the address space"};
  }
  if (!(options.effort >= 0 && options.effort <= 1)) {
    throw std::invalid_argument{"gpumem: a pool's effort must be between 0 and 1"};
  }
  if (options.stall_timeout < std::chrono::nanoseconds{0}) {
    throw std::invalid_argument{"gpumem: a pool's stall_timeout must not be negative"};
  }
  if (!paged) options.effort = 0; // only pages can be moved
  check_limit(options.limit);
  check_hardening(options.hardened, options.limit);
  check_blocks(options);
  return options;
}

std::optional<device> device_of(pool_upstream const& upstream) {
  auto const ordinal = upstream.device();
  return ordinal < 0 ? std::nullopt : std::optional{device{ordinal}};
}

template <class... Parts> std::unique_ptr<pool_backend> make_backend(pool_upstream& upstream, Parts&... parts) {
  if (upstream.paged()) return std::make_unique<page_backend>(upstream, parts...);
  return std::make_unique<pool_backend>(upstream, parts...);
}

} // namespace

std::size_t guard_bytes(hardening_options const& options) noexcept {
  return guard_layout::of(options).total(0, granule);
}

void check_limit(std::size_t limit) {
  if (limit > PTRDIFF_MAX) {
    throw std::invalid_argument{"gpumem: a pool's limit must be less than half the address space"};
  }
  if (limit && limit < granule) throw std::invalid_argument{"gpumem: a pool's limit must be 256 bytes at least"};
}

// Polls may take at least a sixteenth of the time: without polls streams would share no memory.
pool_parts::pool_parts(std::unique_ptr<pool_upstream> owned_upstream, pool_options new_options, timer& next_pass)
    : upstream{std::move(owned_upstream)}, options{checked_options(std::move(new_options), upstream->paged())},
      where{device_of(*upstream)},
      smallest_block{options.smallest_block ? options.smallest_block + guard_bytes(options.hardened) : 0},
      rules{options.cross_stream, upstream->host_accessible()},
      shards{std::max(options.effort, 1.0 / 16), options.shard_per_thread},
      chunks{options.limit, (options.chunk_size + granule - 1) / granule * granule}, passes{next_pass, requests},
      mode{options, rules, chunks, shards, requests, caches},
      backend{make_backend(*upstream, options, where, rules, chunks, shards, mode)} {
  caches.set_devices(upstream->devices());
}

} // namespace gpumem::detail
