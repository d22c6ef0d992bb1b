// Uses of live blocks on streams other than the one for which they were allocated.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:recorded_uses;
import :block;
import :frees;
import :pool_parts;
import :shard_list;
import :shard_roles;
import :std;
import :stream;

namespace gpumem::detail {

/// Adds to live blocks the uses that callers declare by record_use(). After the free, the memory is reused only when
/// these uses are over too. Takes the locks of all shards.
export class recorded_uses {
public:
  /// Keeps references to both arguments.
  recorded_uses(pool_parts& parts, deferred_frees& deferred) noexcept : parts_{parts}, deferred_{deferred} {}

  /// Declares that all uses of the block on this stream are enqueued. If no live block begins at the pointer, reports a
  /// misuse and returns false. Throws cuda_error, std::bad_alloc.
  bool record(stream_key const& key, void* pointer);
  /// Returns the uses on other streams that were recorded for the live block at the address.
  stream_uses of(void const* pointer) noexcept;

private:
  [[clang::requires_capability(one_shard, all_shards)]] void admit(stream_uses& uses, stream_key const& key);

  pool_parts& parts_;
  deferred_frees& deferred_;
};

} // namespace gpumem::detail
