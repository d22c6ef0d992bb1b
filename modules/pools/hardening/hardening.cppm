// The layer of a hardened pool between its users and its engine: guards, quarantine, history and live blocks.
// SPDX-License-Identifier: Apache-2.0
module;
#include <map>
export module gpumem:hardening;
import :backoff;
import :block_history;
import :block_info;
import :cuda;
import :deferred_release;
import :error;
import :guarded_block;
import :misuse;
import :pool_engine;
import :pool_options;
import :quarantine;
import :services;
import :std;
import :stream;
import :stream_timeline;
import :sync;
import :tuning;

namespace gpumem::detail {

/// Finds and reports misuse of a pool:
/// - a free of a pointer that is not live, of a wrong size, or of a block that several threads free at once; also after
///   the address was allocated again, as far as the history reaches;
/// - bytes overwritten before or after a block, in its guards;
/// - bytes overwritten after the free. A block is poisoned after the work of the stream that frees it, and checked when
///   it leaves the quarantine. New blocks are filled too, so that reads of uninitialized bytes show.
///
/// The quarantine is first in, first out. Its blocks count as allocated, and are freed early for a request that would
/// fail otherwise. `synchronize` checks all of them, `trim` the complete ones, the end of the pool the rest. Only
/// `synchronize`, `trim` (up to 1 ms) and a request that would fail otherwise wait for the device.
///
/// The host fills memory that it can touch. Otherwise memory of `allocate_sync` gets guards but no fill, and memory of
/// a stream of another device gets neither. The stream of the free cannot poison a block that is freed by the host, by
/// identity, after `record_use` or in a capture. Nor can a stream of another device, or one without a known order after
/// the allocation. The pool poisons such a block when the host has seen its uses complete. Each call asks the driver
/// whether the stream is capturing, also of own streams; nothing is enqueued into a capture.
///
/// To the engine a block is live until it leaves the quarantine. Then the host frees it, so that its order is kept.
/// Driver calls that enqueue work are made without the lock, but for those of the quarantine's own stream. Any thread.
export class hardening final : private deferred_release {
public:
  /// Calls `ended(state)` once, after drop_last_handle(), when the last block has gone back to the engine. Throws what
  /// the constructor of quarantine throws, std::invalid_argument, std::bad_alloc.
  hardening(pool_engine& engine, void (*ended)(void* state) noexcept, void* state);

  /// Waits for blocks in quarantine, one second at most, and only if the key allows it.
  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  /// After drop_last_handle() this object may be gone when the call returns.
  void deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  /// Throws what pool_engine::record_use() throws.
  void record_use(stream_key const& key, void* pointer);

  /// Checks all complete blocks in quarantine, and frees them to the engine.
  void flush() noexcept;
  /// Waits, at most `longest`, until all blocks in quarantine have gone to the engine. Returns whether they have.
  bool synchronize(sync::duration longest) noexcept;

  std::optional<block_info> find(void const* pointer);
  /// See pool_engine::find_owned.
  std::optional<owned_block> find_owned(void const* pointer);
  /// Throws std::bad_alloc.
  live_blocks find_live();
  /// Throws std::bad_alloc.
  std::vector<block_event> history(void const* pointer);
  void reset_peaks();
  /// Returns the engine's statistics with the numbers that the users see.
  statistics amend(statistics seen);

  /// Called when no handle is left.
  void drop_last_handle() noexcept;

private:
  static constexpr sync::duration max_flush_time{1'000'000}; // a millisecond
  enum class until : std::uint8_t { something, nothing_is_left };
  using lock = sync::lock;

  expected<void*, failure> allocate(stream_key const& key, std::size_t bytes, std::size_t alignment);
  expected<void*, failure> draw(stream_key const& key, std::size_t total, std::size_t alignment) noexcept;
  void fill_guards(guarded_block& fresh, stream_key const& key) noexcept;
  bool drain(sync::time_point deadline, until goal) noexcept;

  guarded_block* claim(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  guarded_block* find_containing(void const* pointer) noexcept __attribute__((requires_capability(mutex_)));
  misuse explain(void const* pointer, std::optional<std::size_t> bytes) noexcept
      __attribute__((requires_capability(mutex_)));
  void report(misuse what) noexcept __attribute__((requires_capability(mutex_)));
  void retire(guarded_block& freed, stream_key const& key) noexcept;
  bool may_touch(stream_key const& key) const noexcept;

  void advance(stream_key const* asking, std::size_t keep) noexcept;
  void release(guarded_block& outgoing) noexcept;
  void report_corruption(guarded_block const& outgoing) noexcept __attribute__((requires_capability(mutex_)));

  void close() noexcept;
  void expire() noexcept override;
  std::vector<stream_timeline*> streams_without_event() override;
  bool may_advance() noexcept;
  bool end_if_empty() noexcept;

  pool_engine& engine_;
  hardening_options const options_;
  guard_layout const layout_;
  bool const by_host_;
  bool const by_device_;
  void (*const ended_)(void* state) noexcept;
  void* const state_;

  sync::mutex mutex_;
  std::map<std::uintptr_t, std::unique_ptr<guarded_block>> blocks_
      __attribute__((guarded_by(mutex_))); // by the address that the user has
  quarantine quarantine_ __attribute__((guarded_by(mutex_)));
  block_history history_ __attribute__((guarded_by(mutex_)));
  std::size_t live_ __attribute__((guarded_by(mutex_))) = 0;
  std::size_t peak_live_ __attribute__((guarded_by(mutex_))) = 0;
  std::uint64_t allocations_ __attribute__((guarded_by(mutex_))) = 0;
  std::uint64_t frees_ __attribute__((guarded_by(mutex_))) = 0;
  std::uint64_t failures_ __attribute__((guarded_by(mutex_))) = 0;
  std::size_t held_blocks_ __attribute__((guarded_by(mutex_))) = 0; // live blocks, and those that are being freed
  std::uint64_t released_ __attribute__((guarded_by(mutex_))) = 0;
  bool no_handles_ __attribute__((guarded_by(mutex_))) = false;
  bool closing_ __attribute__((guarded_by(mutex_))) = false;
  backoff pause_{tuning::max_pass_pause};
};

} // namespace gpumem::detail
