// Checks of pointers that callers pass to a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:misuse_check;
import :block;
import :misuse;
import :pool_parts;
import :shard_roles;
import :std;
import :stream;

namespace gpumem::detail {

/// Returns the live block that begins at the pointer. `bytes`: its requested size; without it any size is right. If
/// there is no such block, sets `wrong` to a misuse by the caller and returns null. The caller holds the locks of all
/// shards, and reports the misuse after it has unlocked them.
export [[clang::requires_capability(one_shard, all_shards)]] block*
find_or_explain(pool_parts& parts, stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                late_misuse& wrong) noexcept;

} // namespace gpumem::detail
