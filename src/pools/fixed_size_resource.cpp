// Derives the options of a pool whose blocks have one size.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
module gpumem:fixed_size_resource.impl;
import :fixed_size_resource;
import :block;
import :pool_parts;

namespace gpumem::detail {

namespace {

// Returns the block size, rounded up to a size class of the pool. Throws std::invalid_argument.
std::size_t block_size_of(fixed_size_options const& options) {
  if (options.block_size == 0 || options.block_size > PTRDIFF_MAX / 4)
    throw std::invalid_argument{"gpumem: the block_size of a fixed_size_resource must be 1 byte to 2 EiB"};
  return size_class::of(options.block_size).bytes;
}

} // namespace

pool_options fixed_pool_options(fixed_size_options options) {
  auto& pool = options.pool;
  if (pool.chunk_size || pool.smallest_block || pool.largest_block)
    throw std::invalid_argument{"gpumem: the pool of a fixed_size_resource gets its sizes from block_size"};
  pool.smallest_block = pool.largest_block = block_size_of(options);
  auto const each = size_class::of(pool.smallest_block + guard_bytes(pool.hardened)).bytes;
  if (options.blocks_per_chunk == 0 || options.blocks_per_chunk > PTRDIFF_MAX / 2 / each)
    throw std::invalid_argument{"gpumem: the chunks of a fixed_size_resource have too many blocks, or none"};
  pool.chunk_size = options.blocks_per_chunk * each;
  if (pool.limit) pool.chunk_size = std::min(pool.chunk_size, pool.limit);
  return std::move(pool);
}

} // namespace gpumem::detail
