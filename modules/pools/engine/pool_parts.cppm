// The parts on which the classes of a pool's engine work.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pool_parts;
import :pool_backend;
import :pool_options;
import :pool_upstream;
import :reuse_rules;
import :shard_list;
import :std;
import :thread_caches;

namespace gpumem::detail {

/// A pool's memory and its rules. Each member says which lock guards it.
export struct pool_parts {
  /// Throws std::invalid_argument.
  pool_parts(std::unique_ptr<pool_upstream> upstream, pool_options asked, pool_backend::observer& watcher);

  pool_options const options;
  reuse_rules const rules;
  pool_backend backend; ///< it holds the upstream of all memory in the shards, and outlives them
  shard_list shards;
  thread_caches caches;

  inline shard_list::search_order everywhere() const noexcept { return {shards, *shards.all().front()}; }

  // Under the locks of all shards.
  /// Blocks, those in thread caches included.
  std::int64_t live_blocks() const noexcept;
  /// Bytes on the free lists.
  std::size_t free_bytes() const noexcept;
  /// Bytes that the callers have requested.
  std::size_t live_bytes() const noexcept;

private:
  // Polls may take this share of the time at least: without polls streams share no memory.
  static constexpr double min_poll_share = 1.0 / 16;
};

/// Throws std::invalid_argument for what no pool can have as its limit.
export void check_limit(std::size_t limit);

} // namespace gpumem::detail
