// arena_resource: a pool in which each thread allocates from arenas of its own.
// SPDX-License-Identifier: Apache-2.0
module;
#include <memory>
#include <utility>
export module gpumem:arena_resource;
import :cuda;
import :pool_options;
import :pool_resource;
import :pool_upstream;
import :std;

namespace gpumem {

/// Options of arena_resource.
export struct arena_options {
  std::size_t arena_size = std::size_t{64} << 20; ///< bytes of one arena, not of all together
  std::size_t max_arenas = 0;                     ///< most arenas that may be reserved at the same time; 0: no bound
  /// All other options of the pool. Its chunk_size and shard_per_thread must stay as they are, and so must its limit if
  /// `max_arenas` is given.
  pool_options pool = {.name = "arena"};
};

namespace detail {
// Returns the options of the pool whose chunks are the arenas. Throws std::invalid_argument.
pool_options arena_pool_options(arena_options options);
} // namespace detail

/// A pool in which each thread, 64 of them at most, allocates from arenas of its own, so that threads share no lock.
/// The upstream gives one arena at a time, as threads need them, up to `max_arenas`. A block larger than an arena gets
/// memory of its own, which counts as the arenas that it would fill. Several small blocks whose sizes round up to the
/// same bytes are split off a range together. A thread whose arenas are full takes free memory from those of other
/// threads before the pool fails. `trim` and `pool.release_threshold` give back arenas that are free as a whole.
///
/// Streams need no arenas of their own: each free range records which streams used it. These records decide when
/// another stream may get the range. The rest is as in pool_resource, where threads share memory and its lock until
/// they contend for the lock. Choose this resource if many threads begin at the same time. `describe_memory()` and
/// `pool.failure_report` tell which streams hold the memory. Any thread.
export template <class Upstream> class arena_resource : public detail::pool_base<arena_resource<Upstream>, Upstream> {
  using base = detail::pool_base<arena_resource, Upstream>;

public:
  /// Throws std::invalid_argument if `arena_size` is less than 1 MiB, or if `arena_size` times `max_arenas` is too
  /// large. Throws also what the constructor of pool_resource throws.
  explicit arena_resource(Upstream upstream, arena_options options = {})
      : base{std::make_unique<detail::held_upstream<Upstream>>(std::move(upstream)),
             detail::arena_pool_options(std::move(options))} {}

  /// Returns the bytes of an arena.
  std::size_t arena_size() const { return this->options().chunk_size; }
};

} // namespace gpumem
