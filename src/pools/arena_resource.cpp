// Makes the options of an arena_resource's pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
module gpumem:arena_resource.impl;
import :arena_resource;

namespace gpumem::detail {

pool_options arena_pool_options(arena_options options) {
  auto& pool = options.pool;
  if (pool.chunk_size || pool.shard_per_thread)
    throw std::invalid_argument{"gpumem: the pool of an arena_resource gets its chunk_size from arena_size"};
  if (options.arena_size < std::size_t{1} << 20)
    throw std::invalid_argument{"gpumem: the arena_size of an arena_resource must be 1 MiB at least"};
  if (options.max_arenas && options.arena_size > PTRDIFF_MAX / options.max_arenas)
    throw std::invalid_argument{"gpumem: the arenas of an arena_resource exceed half the address space"};
  if (options.max_arenas && pool.limit)
    throw std::invalid_argument{"gpumem: an arena_resource has either max_arenas or a limit"};
  pool.chunk_size = options.arena_size;
  pool.shard_per_thread = true;
  if (options.max_arenas) pool.limit = options.arena_size * options.max_arenas;
  return std::move(pool);
}

} // namespace gpumem::detail
