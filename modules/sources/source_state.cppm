// What the sources share: their live blocks, alignment, and frees that wait for the stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <iterator>
#include <map>
export module gpumem:source_state;
import :cuda;
import :device;
import :error;
import :std;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

// A state that draws each block by a call of its own and gives it back behind all work enqueued before the free: once
// the host has seen it, where a source does not say otherwise. Knows its live blocks, so that misuse is found, and
// keeps statistics. A free on a capturing stream cannot wait and cannot be given back: it is kept for the next call
// outside a capture. So is one on another thread's default stream, until an event of that thread is complete. No free
// allocates host memory. Any thread.
class source_state {
public:
  // `natural` is the alignment that draw() gives unasked; above it blocks are over-allocated.
  source_state(char const* name, std::size_t natural) noexcept : name_{name}, natural_{natural} {}
  source_state(source_state const&) = delete;
  source_state& operator=(source_state const&) = delete;

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  // False: a misuse was reported, and nothing happened.
  bool deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept;
  statistics read_statistics() noexcept;

protected:
  ~source_state() = default;

  struct block {
    void* base;
    std::size_t allocated;
    std::size_t bytes;
    std::size_t alignment;
    stream_key freed_on;
    epoch freed_at = 0;
  };
  using block_map = std::map<void*, block>; // its nodes move between maps without allocation

  // Waits on the host for the stream, or asks where its handle may not be touched; then gives the block back. False:
  // not now.
  bool free_after_wait(stream_key const& key, block const& returned) noexcept;

  // Takes out the kept frees of the streams for which `which(stream_key)` holds; each ends with end_free().
  template <class Which> block_map take_deferred(Which which) noexcept {
    sync::lock const held{mutex_};
    block_map taken;
    for (auto at = deferred_.begin(); at != deferred_.end();) {
      auto const next = std::next(at);
      if (which(at->second.freed_on)) taken.insert(deferred_.extract(at));
      at = next;
    }
    any_deferred_.store(!deferred_.empty(), std::memory_order_relaxed);
    return taken;
  }
  // The block has gone back, and its node is the caller's; or it is kept for later, and there is none.
  block_map::node_type end_free(stream_key const& key, block_map::node_type returned, bool gone) noexcept;

private:
  // Memory for the stream: usable by its work from now on; for the host key, by everybody.
  virtual expected<void*, failure> allocate_memory(stream_key const& key, std::size_t bytes,
                                                   std::size_t alignment) noexcept = 0;
  // False: not now, because of a capture somewhere.
  virtual bool free_memory(void* base, std::size_t alignment) noexcept = 0;
  // Gives back a block behind the stream's work so far; false: not now.
  virtual bool free_in_order(stream_key const& key, block const& returned) noexcept {
    return free_after_wait(key, returned);
  }
  // The block went back behind the stream's work.
  virtual void freed_in_order(stream_key const&, block_map::node_type) noexcept {}
  // Whether a kept free of one stream may be tried inside a call on another.
  virtual bool may_free_inside(stream_key const&, stream_key const&) const noexcept { return true; }
  // The device is gone for good.
  virtual void mark_lost(stream_key const& key, CUresult error) noexcept = 0;

  bool track_live(void* pointer, block const& given) noexcept;
  block_map::node_type retire(stream_key const& key, void* pointer, std::size_t bytes) noexcept;
  void dispose(stream_key const& key, block_map::node_type returned) noexcept;
  void run_deferred_frees(stream_key const& now) noexcept;

  char const* const name_;
  std::size_t const natural_;
  sync::mutex mutex_;
  block_map live_;
  block_map deferred_;
  std::atomic<bool> any_deferred_{false};
  statistics counts_;
};

// What a driver's refusal of memory means.
failure refusal_of(CUresult error, std::size_t bytes) noexcept;
// Whether the driver refuses a call because of somebody's capture.
bool capture_forbids(CUresult error) noexcept;

} // namespace gpumem::detail
