// Checks of pointers that callers pass to a pool.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:misuse_check;
import :block;
import :pool_parts;
import :shard_roles;
import :std;
import :stream;

namespace gpumem::detail {

/// Returns the live block that begins at the pointer. Returns null after it has reported a misuse: no live block of
/// this size begins there. Without `bytes` any size is right. The caller holds the locks of all shards.
export [[clang::requires_capability(one_shard, all_shards)]] block*
find_or_report(pool_parts& parts, stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;

} // namespace gpumem::detail
