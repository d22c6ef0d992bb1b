// The parts of one pool, on which all classes of its engine work, and the layout of its guards.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pool_parts;
import :block;
import :chunk_list;
import :device;
import :pool_backend;
import :pool_mode;
import :pool_options;
import :pool_shard;
import :pool_upstream;
import :reuse_rules;
import :shard_list;
import :shard_roles;
import :std;
import :stream;
import :thread_caches;
import :timer;

namespace gpumem::detail {

/// The size of the guards around each block, and the number of bytes of a block that are poisoned and checked. Without
/// hardening both are 0.
export struct guard_layout {
  std::size_t guard = 0;  ///< a multiple of `granule`, the unit of block sizes
  std::size_t poison = 0; ///< blocks up to this size are poisoned in full, larger blocks for half this size at each end

  /// Returns the layout that the options ask for.
  static guard_layout of(hardening_options const& options) noexcept {
    if (!options.enabled) return {};
    return {(options.guard + granule - 1) / granule * granule, options.poison};
  }
  /// Returns the number of bytes before the user's bytes in the block that the engine allocates. The engine is the part
  /// of the pool that allocates and frees blocks.
  inline std::size_t front(std::size_t alignment) const noexcept {
    auto const step = std::max(alignment, granule);
    return (guard + step - 1) & ~(step - 1);
  }
  /// Returns the size of the block to allocate from the engine. Does not overflow for any size that the pool accepts.
  inline std::size_t total(std::size_t bytes, std::size_t alignment) const noexcept {
    return front(alignment) + (bytes + granule - 1) / granule * granule + guard;
  }
};

/// A pool's memory, its rules and its mode (the settings that follow from its state). The class of each member says
/// which lock guards it.
export struct pool_parts {
  /// `next_pass`: the timer whose expiry is a pass. Throws std::invalid_argument.
  pool_parts(std::unique_ptr<pool_upstream> upstream, pool_options options, timer& next_pass);

  std::unique_ptr<pool_upstream> const upstream; ///< first, so that it outlives the shards, which hold its memory
  pool_options const options;
  std::optional<device> const where; ///< the upstream's device; nullopt if it has none
  std::size_t const smallest_block;  ///< bytes, including the guards around each block of a hardened pool
  reuse_rules rules;
  shard_list shards;
  thread_caches caches;
  chunk_list chunks;
  admission requests;
  pass_timer passes;
  pool_mode mode;
  std::unique_ptr<pool_backend> const backend;

  inline bool lost() const noexcept { return where && where->lost(); }
  /// Returns whether work of the stream may use the pool's memory. A stream passes this test before the pool gives it
  /// memory, and before a thread cache takes a block that it frees. So a thread cache need not ask when it gives one.
  inline bool serves(stream_key const& key) const noexcept {
    return caches.serves(key.identity().timeline().device()) || upstream->serves(key);
  }
};

/// Returns the bytes that guards add to each block.
export std::size_t guard_bytes(hardening_options const& options) noexcept;

/// Throws std::invalid_argument if no pool can have this limit.
export void check_limit(std::size_t limit);

} // namespace gpumem::detail
