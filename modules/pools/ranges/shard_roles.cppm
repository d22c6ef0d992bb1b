// The locks of a pool's shards, as clang's thread-safety analysis sees them. A shard is a part of a pool with a lock of
// its own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:shard_roles;
import :locks;
import :std;

namespace gpumem::detail {

/// Stands for the lock of a shard, which guards that shard. The analysis does not tell the shards of a pool apart.
export inline constexpr sync::role one_shard{};
/// Stands for the locks of all shards together. A thread that holds the lock of one shard holds this role shared. The
/// role guards state that changes only under all the locks, and that is read under any of them.
export inline constexpr sync::role all_shards{};

/// These functions tell the analysis which locks the calling thread holds. Lambdas need them, because the analysis
/// checks a lambda without its caller.
export [[clang::assert_capability(one_shard, all_shards)]] inline void assert_all_shards_held() noexcept {}
export [[clang::assert_capability(one_shard), clang::assert_shared_capability(all_shards)]] inline void
assert_shard_held() noexcept {}

} // namespace gpumem::detail
