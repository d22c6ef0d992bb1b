// Single allocations of the upstream in place of a pool's blocks, for tools that check memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <map>
export module gpumem:pass_through;
import :block_info;
import :error;
import :pool_engine;
import :std;
import :stream;
import :stream_timeline;
import :stream_uses;
import :sync;

namespace gpumem::detail {

/// Returns whether pools pass requests through: if their options or the environment variable GPUMEM_PASS_THROUGH say
/// so. Throws std::invalid_argument if the variable is set to something other than 0, 1, off and on.
export bool passes_through(bool asked);

/// Makes each block of a pool one allocation of its upstream, of exactly the requested bytes, and each free a free
/// there in the order of its stream. So a tool sees each block with its size and lifetime. The engine keeps no memory;
/// it knows whether requests are refused. Any thread.
export class pass_through {
public:
  /// Calls `ended(state)` once, after drop_last_handle(), when the last block was freed.
  pass_through(pool_engine& engine, void (*ended)(void* state) noexcept, void* state) noexcept
      : engine_{engine}, ended_{ended}, state_{state} {}

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  /// After drop_last_handle() this object may be gone when the call returns.
  void deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  /// The stream of the free waits for these uses. For a fifth stream, that stream first waits for the other four.
  void record_use(stream_key const& key, void* pointer);
  std::optional<block_info> find(void const* pointer);
  /// See pool_engine::find_owned.
  std::optional<owned_block> find_owned(void const* pointer);
  void reset_peaks();
  /// Throws std::bad_alloc.
  live_blocks find_live();
  std::vector<memory_range> memory_map();
  statistics read_statistics();
  /// Called when no handle is left.
  void drop_last_handle() noexcept;

private:
  struct block {
    std::size_t bytes;
    std::size_t alignment;
    std::uint64_t stream; // id
    stream_timeline* timeline;
    stream_uses uses;
  };
  using block_map = std::map<std::uintptr_t, block>;
  static constexpr std::size_t remembered = 256; // frees that double frees are compared with

  block_map::node_type take(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  void remember(void* pointer) noexcept __attribute__((requires_capability(mutex_)));
  void finish_free() noexcept;

  pool_engine& engine_;
  void (*const ended_)(void* state) noexcept;
  void* const state_;
  sync::mutex mutex_;
  block_map live_ __attribute__((guarded_by(mutex_)));
  std::array<void*, remembered> freed_ __attribute__((guarded_by(mutex_))){};
  std::size_t next_freed_ __attribute__((guarded_by(mutex_))) = 0;
  std::size_t held_ __attribute__((guarded_by(mutex_))) = 0; // live blocks, and those that are being freed
  bool no_handles_ __attribute__((guarded_by(mutex_))) = false;
  statistics counts_ __attribute__((guarded_by(mutex_)));
};

} // namespace gpumem::detail
