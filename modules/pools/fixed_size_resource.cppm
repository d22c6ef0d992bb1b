// fixed_size_resource: a pool of blocks of one size.
// SPDX-License-Identifier: Apache-2.0
module;
#include <memory>
#include <utility>
export module gpumem:fixed_size_resource;
import :cuda;
import :pool_options;
import :pool_resource;
import :pool_upstream;
import :std;

namespace gpumem {

/// Options of fixed_size_resource; by default blocks of 1 MiB, 128 a chunk.
export struct fixed_size_options {
  std::size_t block_size = std::size_t{1} << 20; ///< bytes; rounded up to one of the sizes in which pools cut blocks
  std::size_t blocks_per_chunk = 128;            ///< blocks that are allocated from the upstream as one chunk
  /// All other options of the pool. Its chunk_size, smallest_block and largest_block must stay 0.
  pool_options pool = {.name = "fixed_size"};
};

namespace detail {
// Returns the options of the pool in which every block has this size. Throws std::invalid_argument.
pool_options fixed_pool_options(fixed_size_options options);
} // namespace detail

/// A pool in which every block has the same size. Any free block serves any request, so an allocation takes constant
/// time, and memory does not fragment. Requests for more than `block_size()` fail with outcome::too_large. The upstream
/// gives chunks of `blocks_per_chunk` blocks, the first one at the first request; `pool.initial_size` reserves chunks
/// in the constructor. `trim` gives back the chunks that are free as a whole.
///
/// Everything else is as in pool_resource: stream order, waiting requests, limits, hardening and ownership. Statistics
/// count requested bytes as `live`, and whole blocks as `allocated`. Any thread.
export template <class Upstream>
class fixed_size_resource : public detail::pool_base<fixed_size_resource<Upstream>, Upstream> {
  using base = detail::pool_base<fixed_size_resource, Upstream>;

public:
  /// Throws std::invalid_argument if `block_size` or `blocks_per_chunk` is 0, or if their product is too large. Throws
  /// also what the constructor of pool_resource throws.
  explicit fixed_size_resource(Upstream upstream, fixed_size_options options = {})
      : base{std::make_unique<detail::held_upstream<Upstream>>(std::move(upstream)),
             detail::fixed_pool_options(std::move(options))} {}

  /// Returns the bytes of each block.
  std::size_t block_size() const { return this->options().largest_block; }
};

} // namespace gpumem
