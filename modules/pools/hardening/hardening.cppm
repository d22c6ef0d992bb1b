// The layer of a hardened pool between its users and its engine.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:hardening;
import :backoff;
import :block_calls;
import :cuda;
import :deferred_release;
import :error;
import :guarded_blocks;
import :memory_walk;
import :misuse;
import :pool_engine;
import :pool_options;
import :pool_parts;
import :pool_reports;
import :quarantine;
import :range_search;
import :services;
import :std;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

/// Finds and reports misuse of a pool:
/// - a free of a pointer that is not live, a free with a wrong size, and frees of one block by several threads at once.
///   The history of frees also shows a double free after the address was allocated again with another size;
/// - bytes overwritten in the guards before and after a block;
/// - bytes overwritten after the free. A freed block is poisoned on the stream of the free, and goes to the
///   quarantine, which checks it later. New blocks are filled too, so that reads of uninitialized bytes show.
///
/// The quarantine is first in, first out. Its blocks count as allocated. A request that would fail for lack of memory
/// takes blocks out of the quarantine early, and may wait for them. `synchronize` checks all of its blocks, `trim`
/// checks those that no stream uses any more, and the end of the pool checks the rest. Only `synchronize`, `trim` (up
/// to 1 ms) and a request that lacks memory wait for the device.
///
/// Fills: the host fills memory that it can touch. Other memory is filled on the stream of the request. In memory that
/// the host cannot touch, a block of `allocate_sync` gets guards but no fill, and a block for a stream of another
/// device gets neither guards nor fill.
///
/// Poison: a free without a stream, or without the stream's handle, enqueues no poison. Neither does a free after
/// `record_use`, in a capture, on a stream of another device, or on a stream with no known order after the allocation.
/// In these cases the quarantine poisons the block when the host has seen its uses complete. Each allocation and each
/// free asks the driver whether the stream captures; nothing is enqueued into a capture.
///
/// To the engine a block is live until it leaves the quarantine. It is then freed to the engine as unused by any
/// stream. Driver calls on the streams of callers are made without `mutex_`. The quarantine has a stream of its own;
/// driver calls on that stream are made under `mutex_`. Any thread.
export class hardening final : public block_calls, private deferred_release {
public:
  /// Throws std::invalid_argument, std::bad_alloc, and the exceptions of making a stream and of allocating pinned
  /// memory.
  hardening(pool_engine& engine, void (*ended)(void* state) noexcept, void* state);

  /// If the engine has no memory and `key` allows a wait, waits up to one second for blocks that leave the quarantine.
  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                        std::size_t alignment) noexcept override;
  /// Lends pages of the engine, which have no guards and are not quarantined. Waits as try_allocate() does.
  bool free_kept(stream_key const& key) noexcept override;
  void deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept override;
  void return_part(stream_key const& key, void* pointer, std::size_t bytes) noexcept override {
    deallocate(key, pointer, bytes);
  }
  void record_use(stream_key const& key, void* pointer) override;

  /// Checks the blocks in quarantine that no stream uses any more, and frees them to the engine.
  bool flush() noexcept override;
  /// Waits, at most `longest`, until all blocks in quarantine have gone to the engine. Returns whether they have.
  bool synchronize(sync::duration longest) noexcept override;

  std::optional<block_info> find(void const* pointer) override;
  std::optional<owned_block> find_owned(void const* pointer) override;
  live_blocks find_live() override;
  bool set_label(void const* pointer, std::uint32_t label) noexcept override;
  memory_copy copy_memory() override;
  std::vector<block_event> history(void const* pointer) override;
  void reset_peaks() override;
  /// Corrects the engine's statistics: to the engine blocks in quarantine are live; to the users they are freed.
  statistics read_statistics() override;
  void drop_last_handle() noexcept override;

private:
  static constexpr sync::duration max_flush_time{1'000'000}; // 1 ms, in nanoseconds
  enum class until : std::uint8_t { something, nothing_is_left };
  using lock = sync::lock;

  expected<void*, failure> allocate(stream_key const& key, std::size_t bytes, std::size_t alignment);
  template <class Attempt> expected<void*, failure> draw(stream_key const& key, Attempt attempt) noexcept;
  void fill_guards(guarded_block& fresh, stream_key const& key) noexcept;
  bool drain(sync::time_point deadline, until goal) noexcept;

  guarded_block* claim(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  void report(misuse misuse) noexcept GPUMEM_REQUIRES(mutex_);
  void retire(guarded_block& guarded, stream_key const& key) noexcept;
  bool may_touch(stream_key const& key) const noexcept;

  void advance(stream_key const* asking, std::size_t keep) noexcept;
  void end_quarantine(guarded_block& outgoing) noexcept;
  void report_corruption(guarded_block const& outgoing) noexcept GPUMEM_REQUIRES(mutex_);

  void close() noexcept;
  void expire() noexcept override;
  std::vector<stream_timeline*> streams_without_event() override;
  given_back give_back() noexcept override;
  bool may_advance() noexcept;
  bool end_if_empty() noexcept;

  hardening_options const options_;
  guard_layout const layout_;
  bool const by_host_;
  bool const by_device_;
  std::uint32_t const quarantine_label_; // names the quarantined blocks, which are live to the engine

  sync::mutex mutex_;
  guarded_blocks blocks_ GPUMEM_GUARDED_BY(mutex_);
  quarantine quarantine_ GPUMEM_GUARDED_BY(mutex_);
  std::uint64_t failures_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::size_t held_blocks_ GPUMEM_GUARDED_BY(mutex_) = 0;    // blocks that are live or being freed
  std::uint64_t engine_frees_ GPUMEM_GUARDED_BY(mutex_) = 0; // blocks that have gone to the engine
  bool no_handles_ GPUMEM_GUARDED_BY(mutex_) = false;
  bool closing_ GPUMEM_GUARDED_BY(mutex_) = false;
  backoff pause_;
};

} // namespace gpumem::detail
