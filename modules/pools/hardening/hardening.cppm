// The layer of a hardened pool between its users and its engine: guards, quarantine, history, and who owns what.
// SPDX-License-Identifier: Apache-2.0
module;
#include <map>
export module gpumem:hardening;
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

namespace gpumem::detail {

/// To the engine its blocks are live until they leave the quarantine; then the host frees them, so no order is lost.
/// Driver calls that enqueue work are made without its lock, but for those of the quarantine's own stream. Any thread.
export class hardening final : private deferred_release {
public:
  /// `ended(whom)` is called once: after abandon(), when the last block has gone back. Throws what a quarantine throws,
  /// std::invalid_argument, std::bad_alloc.
  hardening(pool_engine& engine, void (*ended)(void* state) noexcept, void* state);

  /// Waits, for a second at most, only if the key allows it.
  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  /// May be its end, after abandon().
  void deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  /// Throws as the engine's.
  void record_use(stream_key const& key, void* pointer);

  /// Looks at all that is complete and gives it to the engine.
  void flush() noexcept;
  /// The same of everything, for which it waits at most so long; false if that was not enough.
  bool synchronize(sync::duration longest) noexcept;

  std::optional<block_info> find(void const* pointer);
  /// Throws std::bad_alloc.
  std::vector<block_event> history(void const* pointer);
  /// The engine's statistics as the users see them.
  statistics amend(statistics seen);

  /// No handle is left.
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
  guarded_block* find_containing(void const* pointer) noexcept;
  misuse explain(void const* pointer, std::optional<std::size_t> bytes) noexcept;
  void report(misuse what, lock& held) noexcept;
  void retire(guarded_block& freed, stream_key const& key) noexcept;
  bool may_touch(stream_key const& key) const noexcept;

  void advance(stream_key const* asking, std::size_t keep) noexcept;
  void release(guarded_block& outgoing) noexcept;
  void report_corruption(guarded_block const& outgoing, lock& held) noexcept;

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
  // What follows changes only under the lock.
  std::map<std::uintptr_t, std::unique_ptr<guarded_block>> blocks_; // by what the users have
  quarantine quarantine_;
  block_history history_;
  std::size_t live_ = 0;
  std::size_t peak_live_ = 0;
  std::uint64_t allocations_ = 0;
  std::uint64_t frees_ = 0;
  std::uint64_t failures_ = 0;
  std::size_t held_blocks_ = 0; // blocks, with those that are being freed
  std::uint64_t released_ = 0;
  bool no_handles_ = false;
  bool closing_ = false;
  unsigned passes_ = 0;
};

} // namespace gpumem::detail
