// What the handles of one pool share: blocks, chunks, their order, and the way from a request to memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>
export module gpumem:pool_engine;
import :chunks;
import :cuda;
import :device;
import :error;
import :executor;
import :misuse;
import :ranges;
import :services;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem {

export {
  using gpumem::pool_options;
  using gpumem::reuse;
}

/// What a pool knows of the memory in which a pointer lies.
export struct block_info {
  void* base = nullptr;
  std::size_t bytes = 0;    ///< requested; 0 of free memory
  std::size_t granted = 0;  ///< rounded up; of free memory, the size of the range
  std::uint64_t stream = 0; ///< id of the stream that it was given to
  bool live = false;
};

namespace detail {

/// How a stream may come to use a free range, the cheapest first.
enum class rung : std::uint8_t { own, ordered, completed, wait, none };

struct pool_request {
  stream_key const& key;
  std::size_t requested;
  std::size_t bytes; // in granules
  std::size_t alignment;
};

struct pool_place {
  block* range = nullptr;
  std::size_t offset = 0;
  rung how = rung::none;
};

/// One lock guards all of it. Driver calls on streams are made under it; calls upstream, waits and synchronisation are
/// not. Nothing in a free allocates host memory. Disposes of itself after close().
export class pool_engine final : private resumption {
public:
  /// Throws what upstream's failure throws, std::invalid_argument, std::bad_alloc.
  pool_engine(std::unique_ptr<pool_upstream> upstream, pool_options options);

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  /// Without `bytes` any size is right. False: a misuse was reported, and nothing happened.
  bool deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  /// False: a misuse was reported. Throws cuda_error, std::bad_alloc.
  bool record_use(stream_key const& key, void* pointer);
  std::optional<block_info> find(void const* pointer);
  std::size_t trim(std::size_t keep);
  /// False: not all of what keeps free memory from going was seen complete. Throws std::bad_alloc.
  bool settle(sync::duration longest);
  figures read_figures();
  /// Whether every byte is in exactly one place: granted + free = reserved, no overlap, index and map agree.
  bool consistent();

  /// None over upstreams without one.
  std::optional<device> where() const noexcept { return device_; }
  pool_options const& options() const noexcept { return options_; }
  pool_upstream& upstream() noexcept { return *upstream_; }

  /// No handle and no live block is left. Gives everything upstream; what the host has not seen complete, by the
  /// library thread. The engine may be gone when this returns.
  void close() noexcept;

private:
  enum class growth_result : std::uint8_t { granted, changed, failed };

  // pool_allocate.cpp: the ladder.
  expected<void*, failure> allocate(pool_request const& what);
  rung classify(tag_set const& tags, stream_key const& key, rung furthest) const;
  pool_place best_place(pool_request const& what, rung furthest);
  void* grant(pool_request const& what, pool_place const& place);
  void* reuse_now(pool_request const& what);
  void* reuse_behind_wait(pool_request const& what);
  bool wait_for(tag_set const& tags, stream_key const& key);
  void join_free(stream_key const& key, rung furthest);
  void learn_completion(stream_key const* asking);

  // pool_grow.cpp: upstream.
  growth_result grow(pool_request const& what, sync::lock& held, bool exact, expected<void*, failure>& result);
  std::size_t give_back(std::size_t keep, sync::lock& held) noexcept;
  bool idle_and_complete(chunk const& home) noexcept;
  void resume() noexcept override;
  void pass(sync::lock& held) noexcept;
  void post_pass() noexcept;
  void leave_behind() noexcept;

  // pool_drain.cpp: the end of the ladder, at out-of-memory.
  void* drain(pool_request const& what, sync::lock& held);
  bool draining_may_help(pool_request const& what);
  bool lost() const noexcept { return device_ && device_->lost(); }
  std::vector<timeline*> open_timelines(bool without_evidence);

  // pool_free.cpp
  block* checked_block(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  void end_block(block& freed) noexcept;
  tag end_use(stream_key const& key, std::size_t bytes) noexcept;
  void join_neighbours(block& freed) noexcept;
  bool join_if_alike(block& lower, block& upper) noexcept;
  void after_free(chunk const& home) noexcept;
  void defer(block& freed, stream_key const& key) noexcept;
  void serve_deferred() noexcept;
  void make_room(tag_set& uses, stream_key const& key, sync::lock& held);
  void prune(tag_set& tags) const noexcept;
  void note_stream(timeline const& order) noexcept;

  std::unique_ptr<pool_upstream> const upstream_;
  pool_options const options_;
  std::optional<device> const device_;

  sync::mutex guard_;
  sync::condition changed_; // growth ended, or memory has left
  range_map ranges_;
  chunk_list chunks_;
  figures counts_; // the counters; sizes are filled in when asked for
  timeline const* first_stream_ = nullptr;
  block* deferred_ = nullptr;
  pool_engine* next_left_ = nullptr;
  bool shared_ = false;   // a second stream has been served
  bool pressure_ = false; // since a request failed all rungs before waiting
  bool growing_ = false;
  bool posted_ = false;
  bool passing_ = false;
  bool closed_ = false;
  unsigned idle_passes_ = 0; // of the library thread, since the last free that called for one
  unsigned next_wait_ = 0;   // the pass that next waits for tails
};

/// Waits on the host, at most so long, for all work of the timelines' devices, and publishes the timelines' epochs;
/// false if that was not seen by then. No lock may be held.
export bool synchronise_with(std::vector<timeline*> const& orders, sync::duration longest) noexcept;

} // namespace detail
} // namespace gpumem
