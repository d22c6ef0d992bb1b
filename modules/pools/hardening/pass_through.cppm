// A pool mode for tools that check memory. Each block is then an allocation of the upstream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <map>
export module gpumem:pass_through;
import :block;
import :block_calls;
import :error;
import :memory_walk;
import :memory_watcher;
import :pool_reports;
import :std;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

/// Returns whether a pool passes requests through to its upstream: if its options ask for that (`asked`), or the
/// environment variable GPUMEM_PASS_THROUGH does. Throws std::invalid_argument if the variable has another value than
/// 0, 1, off or on.
export bool passes_through(bool asked);

/// Makes each block of a pool one allocation of its upstream, of exactly the requested bytes. Each free of a block
/// frees that allocation, in the order of the free's stream. So a tool sees the size and lifetime of each block. The
/// pool's engine, which hands out blocks in other modes, then holds no memory. It only has the upstream and says
/// whether requests are refused. Any thread.
export class pass_through final : public block_calls {
public:
  using block_calls::block_calls;

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                        std::size_t alignment) noexcept override;
  void deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept override;
  void return_part(stream_key const& key, void* pointer, std::size_t bytes) noexcept override {
    deallocate(key, pointer, bytes);
  }
  /// Declares a use by the stream of `key`; the stream of the free waits for it. A block holds the uses of four
  /// streams. A fifth stream first waits for the other four, so that its use stands for their uses too.
  void record_use(stream_key const& key, void* pointer) override;
  /// Reserves nothing.
  expected<std::size_t, failure> reserve(std::size_t /*bytes*/) override { return 0; }
  bool watch_memory(memory_watcher& /*watcher*/, bool /*begin*/) override { return false; }
  std::optional<block_info> find(void const* pointer) override;
  std::optional<owned_block> find_owned(void const* pointer) override;
  live_blocks find_live() override;
  std::vector<memory_range> memory_map() override;
  bool set_label(void const* pointer, std::uint32_t label) noexcept override;
  memory_copy copy_memory() override;
  void reset_peaks() override;
  statistics read_statistics() override;
  void drop_last_handle() noexcept override;

private:
  struct block {
    std::size_t bytes;
    std::size_t alignment;
    std::uint64_t stream; // id of the stream on which the block was allocated
    stream_timeline* timeline;
    stream_uses uses;
    std::uint32_t label = 0;
  };
  using block_map = std::map<std::uintptr_t, block>;
  static constexpr std::size_t remembered = 256; // number of last frees that are kept, to recognize double frees

  block_map::node_type take(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  void remember(void* pointer) noexcept GPUMEM_REQUIRES(mutex_);
  void end_free() noexcept;

  sync::mutex mutex_;
  block_map live_ GPUMEM_GUARDED_BY(mutex_);
  std::array<void*, remembered> freed_ GPUMEM_GUARDED_BY(mutex_){};
  std::size_t next_freed_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::size_t held_ GPUMEM_GUARDED_BY(mutex_) = 0; // blocks that are live or being freed
  bool no_handles_ GPUMEM_GUARDED_BY(mutex_) = false;
  statistics counts_ GPUMEM_GUARDED_BY(mutex_);
};

} // namespace gpumem::detail
