// Names for the locks of a pool's shards in clang's thread-safety analysis.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:shard_roles;
import :locks;
import :std;

namespace gpumem::detail {

/// Stands for the lock of one shard, which guards that shard. The analysis does not tell the shards of a pool apart.
export inline constexpr sync::role one_shard{};
/// Stands for the locks of all shards together. A thread with the lock of one shard holds this role shared. So the role
/// guards state that is changed only under all the locks, and is read under any one of them.
export inline constexpr sync::role all_shards{};

/// These two functions tell the analysis which locks the calling thread holds. Lambdas need them, because the analysis
/// checks a lambda without its caller.
export GPUMEM_ASSERTS(one_shard, all_shards) inline void assert_all_shards_held() noexcept {}
export GPUMEM_ASSERTS(one_shard) GPUMEM_ASSERTS_SHARED(all_shards) inline void assert_shard_held() noexcept {}

} // namespace gpumem::detail
