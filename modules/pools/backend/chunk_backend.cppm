// Growth and release of pools that get chunks from their upstream.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:chunk_backend;
import :backend_parts;
import :block;
import :error;
import :pool_shard;
import :range_search;
import :shard_list;
import :shard_roles;
import :std;
import :stream;

namespace gpumem::detail {

/// Gets chunks from the upstream, and gives back chunks without a live block. A pool of pages gets chunks too where the
/// driver has no addresses; the functions leave its pages alone. grow() gets a chunk for a request, and unless `exact`
/// a larger one than the request needs. migrate() moves an unused chunk of another shard to the request's shard.
/// release() gives back unused chunks as long as at least `keep` bytes remain. pool_backend, which calls these
/// functions, has their full contracts.
export class chunk_backend {
public:
  explicit chunk_backend(backend_parts& parts) noexcept : parts_{parts} {}

  [[clang::requires_capability(one_shard, all_shards)]] attempt<placement> grow(allocation_request const& request,
                                                                                bool exact);
  /// Gets one chunk of `bytes` bytes for the shard `into`. Returns the chunk's only block, which is free.
  [[clang::requires_capability(one_shard, all_shards)]] expected<block*, failure> reserve(std::size_t bytes,
                                                                                          pool_shard& into);
  [[clang::requires_capability(one_shard, all_shards)]] placement migrate(allocation_request const& request);
  [[clang::requires_capability(one_shard, all_shards)]] std::size_t release(std::size_t keep) noexcept;
  /// Returns whether release(0) would give back a chunk.
  [[clang::requires_capability(one_shard, all_shards)]] bool can_release() const noexcept;
  /// Returns whether the pool has a chunk that does not consist of pages.
  [[clang::requires_shared_capability(all_shards)]] bool any() const noexcept;

private:
  [[clang::requires_capability(one_shard, all_shards)]] expected<block*, failure>
  allocate(stream_key const& key, pool_shard& into, std::size_t bytes, std::size_t least);
  [[clang::requires_capability(one_shard, all_shards)]] block& add(stream_key const& key, pool_shard& into, void* base,
                                                                   std::size_t bytes);
  [[clang::requires_shared_capability(all_shards)]] bool is_idle_and_complete(chunk const& parent) const noexcept;

  backend_parts& parts_;
};

} // namespace gpumem::detail
