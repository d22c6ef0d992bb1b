// Growth and release of pools over chunks.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:chunk_backend;
import :allocation_request;
import :attempt;
import :backend_parts;
import :block;
import :chunk;
import :error;
import :pool_shard;
import :shard_list;
import :std;
import :stream;

namespace gpumem::detail {

/// Gets chunks from the upstream, and gives back those without a live block. For locks and errors see pool_backend,
/// which calls it.
export class chunk_backend {
public:
  explicit chunk_backend(backend_parts& parts) noexcept : parts_{parts} {}

  attempt<placement> grow(allocation_request const& request, all_shards_lock& held, bool exact);
  /// Gets one chunk of these bytes.
  expected<block*, failure> reserve(std::size_t bytes, pool_shard& into, all_shards_lock& held);
  placement migrate(allocation_request const& request);
  std::size_t release(std::size_t keep, all_shards_lock& held) noexcept;

private:
  expected<block*, failure> allocate(stream_key const& key, pool_shard& into, std::size_t bytes, std::size_t least,
                                     all_shards_lock& held);
  block& add(stream_key const& key, pool_shard& into, void* base, std::size_t bytes);
  bool is_idle_and_complete(chunk const& parent) const noexcept;

  backend_parts& parts_;
};

} // namespace gpumem::detail
