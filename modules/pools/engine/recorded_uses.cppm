// Uses of live blocks on streams other than their own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:recorded_uses;
import :deferred_frees;
import :pool_parts;
import :shard_list;
import :shard_roles;
import :std;
import :stream;
import :stream_uses;

namespace gpumem::detail {

/// Keeps the uses that callers declare by record_use(). Takes the locks of all shards.
export class recorded_uses {
public:
  /// Refers to both.
  recorded_uses(pool_parts& parts, deferred_frees& deferred) noexcept : parts_{parts}, deferred_{deferred} {}

  /// Returns false after it has reported a misuse. Throws cuda_error, std::bad_alloc.
  bool record(stream_key const& key, void* pointer);
  /// Returns the uses on other streams that were recorded for a live block.
  stream_uses of(void const* pointer) noexcept;

private:
  [[clang::requires_capability(one_shard, all_shards)]] void admit(stream_uses& uses, stream_key const& key);

  pool_parts& parts_;
  deferred_frees& deferred_;
};

} // namespace gpumem::detail
