// Graph memory: its chunks, the uses of its blocks, and the list of such memories of a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cuda.h>
#include <memory>
#include <set>
#include <unordered_map>
export module gpumem:graph_memory;
import :block;
import :captured_order;
import :cuda;
import :device;
import :error;
import :intrusive_list;
import :misuse;
import :pool_reports;
import :pool_upstream;
import :range_allocator;
import :services;
import :shared_state;
import :std;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

/// The chunks that a graph memory has from its upstream. All functions that are not static need the lock of the graph
/// memory.
export class graph_chunks {
public:
  /// Allocates a chunk that has room for a block of this size and alignment. The chunk begins 256 bytes after the start
  /// of the upstream's block, so that no block in the chunk has the address of the upstream's block. Called without a
  /// lock, because the upstream may be slow.
  static expected<chunk, failure> draw(pool_upstream& upstream, std::size_t bytes, std::size_t alignment) noexcept;
  /// Gives a chunk back to the upstream. Called without a lock.
  static void give_back(pool_upstream& upstream, chunk const& chunk) noexcept;
  /// Returns the bytes that the upstream has given for a chunk.
  static std::size_t bytes_from_upstream(chunk const& chunk) noexcept;

  /// Adds a chunk, whose memory becomes a free range. Throws std::bad_alloc, and then adds nothing.
  void add(chunk const& chunk, range_allocator& ranges);
  /// Returns the block that holds the address; null if no chunk does.
  block* find_containing(void const* pointer) const noexcept;
  /// Visits every chunk.
  template <class Visit> void visit(Visit visitor) const {
    for (auto const& each : chunks_) visitor(*each);
  }

private:
  std::vector<std::unique_ptr<chunk>> chunks_;
};

/// Ends the uses of blocks of a graph memory, and finds the free ranges whose uses come before the next work of a
/// stream. In the stream_uses here, `newest` is no epoch: it is the number that captured_order gives to the end of the
/// use. Guarded by the lock of the graph memory.
export class graph_uses {
public:
  /// Keeps references to the memory whose uses these are.
  graph_uses(range_allocator& ranges, graph_chunks const& chunks) noexcept : ranges_{ranges}, chunks_{chunks} {}
  graph_uses(graph_uses const&) = delete;
  graph_uses& operator=(graph_uses const&) = delete;
  ~graph_uses();

  /// Notes that the calling thread requests memory on the stream. Returns the id of the stream's capture; 0 if the
  /// stream does not capture. Keeps the stream's timeline as long as the stream lives or a live block names it. So no
  /// other stream gets that timeline meanwhile. Throws std::bad_alloc.
  std::uint64_t note_request(stream_key const& key);
  /// Notes in which capture a block was allocated; 0: in none. If the host has no memory for the note, the block counts
  /// as allocated in none.
  void note_allocation(block const& live, std::uint64_t capture) noexcept;
  /// Forgets the capture in which a block was allocated that is freed now.
  void forget(block const& returned) noexcept { allocated_in_.erase(&returned); }
  void forget_all_blocks() noexcept { allocated_in_.clear(); }
  /// Returns the capture in which a block was allocated if the calling thread works on that capture; otherwise 0.
  std::uint64_t capture_worked_on_here(block const& live) const noexcept;
  /// Returns the kept timeline of the stream with this id; null if there is none.
  stream_timeline* find_stream(std::uint64_t id) const noexcept;

  /// How a use has ended: by a call of record_use, after which other uses may come, or by the free.
  enum class ended_by : std::uint8_t { declaration, free };
  /// Ends a use of a live block on the stream.
  void end(block& block, stream_key const& key, ended_by reason) noexcept;

  /// A free range that a stream may use, and the offset of the block in it; the range is null if there is none.
  struct fit {
    block* range = nullptr;
    std::size_t offset = 0;
  };
  /// Finds the smallest range that fits and whose uses come before the next work of the capturing stream. Leaves out
  /// ranges that only this stream has used. Throws std::bad_alloc.
  fit find_ordered(stream_key const& key, std::size_t bytes, std::size_t alignment);

private:
  // Names the uses of dead streams in one graph, in place of the timelines of these streams. A range that several of
  // them used keeps the newest end: the captures of all have ended, so all uses come before the same later work.
  struct dead_streams {
    CUgraph graph = nullptr;
    std::unique_ptr<stream_timeline> name;
  };

  void keep_timeline(stream_timeline& timeline);
  void drop_dead_timelines();
  void rename_dead(block& block);
  stream_timeline& name_of_dead(CUgraph graph);
  std::set<stream_timeline const*> named_timelines() const;
  std::uint64_t capture_of(block const& live) const noexcept;
  void drop_unused_ends();

  range_allocator& ranges_;
  graph_chunks const& chunks_;
  std::set<stream_timeline*> timelines_; // kept, so that no other stream gets one of them
  std::vector<dead_streams> dead_;       // never shrinks, since free lists refer to the names
  captured_order order_;
  // The captures in which live blocks were allocated. A block that was allocated outside a capture is not here.
  std::unordered_map<block const*, std::uint64_t> allocated_in_;
};

export class graph_memory_list;

/// The state of a graph_resource: chunks of an upstream, which go back only when this object is destroyed. A freed
/// range immediately serves later requests of the stream that freed it. Completion is not tested, since captured work
/// completes anew at each launch of the graph. Another stream of the capture gets the range if the graph orders that
/// stream's next work after all uses of the range. For each stream that uses a range, a stream_use keeps the end of the
/// use, as a number: captured_order numbers the points of the graph at which uses end. Records no event, queries none,
/// and waits for none; a request outside a capture waits for its stream if the host can access the memory. Any thread.
export class graph_memory final : public shared_state {
public:
  explicit graph_memory(std::unique_ptr<pool_upstream> upstream);

  /// Requests on capturing streams are passed to try_allocate() too.
  static constexpr bool forwards_captures = true;

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t) noexcept {
    free_or_report(key, pointer, bytes);
  }
  inline void deallocate(stream_key const& key, void* pointer) noexcept { free_or_report(key, pointer, std::nullopt); }
  /// Declares that all uses of the block on this stream are enqueued. The capture in which the block was allocated may
  /// not order the end of these uses. Then the memory is not reused, unless the same stream frees the block.
  void record_use(stream_key const& key, void* pointer) noexcept;
  inline std::optional<device> where() const noexcept { return device_; }
  bool serves_stream(stream_key const& key) const noexcept { return upstream_->serves(key); }
  /// Gives nothing back and returns 0: captured graphs may use all of the memory.
  std::size_t trim(std::size_t keep) noexcept;
  statistics read_statistics() noexcept;
  std::optional<block_info> find(void const* pointer) noexcept;
  /// Returns the live block that starts at the address, for a caller that owns it; nullopt if there is none.
  std::optional<owned_block> find_owned(void const* pointer) noexcept;
  std::optional<std::size_t> try_deallocate(void* pointer) noexcept;
  void reset_peaks() noexcept;
  /// Describes all memory, in the order of addresses. Throws std::bad_alloc.
  std::vector<memory_range> memory_map();
  /// Makes exactly these ranges live, at their addresses, and frees all other blocks. Throws std::invalid_argument for
  /// ranges that are not of this memory or overlap, and std::bad_alloc; then it has changed nothing.
  void restore(std::span<memory_range const> live);
  static char const* resource_name() noexcept { return "graph_resource"; }
  pool_upstream const& upstream() const noexcept { return *upstream_; }

private:
  friend class graph_memory_list;
  friend class intrusive_list<graph_memory>;

  // `foreign`: the pointer is not in this memory. `refused`: the free is a misuse.
  enum class free_outcome : std::uint8_t { foreign, refused, done };

  struct restored_block {
    std::uintptr_t base;
    std::size_t bytes, requested;
    stream_timeline* stream;
  };

  ~graph_memory() override;
  void* take(stream_key const& key, std::size_t bytes, std::size_t alignment) GPUMEM_REQUIRES(mutex_);
  expected<void*, failure> grow(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  bool add(chunk const& chunk) noexcept;

  void free_or_report(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  // After `done` the caller calls drop_live(), which can destroy this object. Sets `wrong` for `refused`.
  free_outcome free(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                    late_misuse& wrong) noexcept;
  free_outcome explain(stream_key const& key, void const* pointer, std::optional<std::size_t> bytes,
                       late_misuse& wrong) const noexcept GPUMEM_REQUIRES(mutex_);
  // Returns the blocks to restore in the order of their addresses, and reserves the host's memory for them. Throws what
  // restore() throws.
  std::vector<restored_block> plan_restore(std::span<memory_range const> live) GPUMEM_REQUIRES(mutex_);
  void free_everything() noexcept GPUMEM_REQUIRES(mutex_);
  void make_live(restored_block const& restored) noexcept GPUMEM_REQUIRES(mutex_);
  bool declare_use(stream_key const& key, void const* pointer, late_misuse& wrong) noexcept;

  std::unique_ptr<pool_upstream> const upstream_; // keeps alive the pool that owns *listed_in_
  std::optional<device> const device_;
  sync::mutex growth_mutex_; // held while the upstream is called
  sync::mutex mutex_;
  range_allocator ranges_ GPUMEM_GUARDED_BY(mutex_);
  graph_chunks chunks_ GPUMEM_GUARDED_BY(mutex_);
  graph_uses uses_ GPUMEM_GUARDED_BY(mutex_);
  statistics counts_ GPUMEM_GUARDED_BY(mutex_);
  graph_memory_list* listed_in_ = nullptr; // set once, under the lock of the list
  list_links<graph_memory> links_;
};

/// The graph memories of a pool. A free through the pool's handle finds here the graph memory that holds the block. A
/// thread takes the lock of this list before that of a graph memory. Any thread.
export class graph_memory_list {
public:
  /// Returns whether the pool has a graph memory. Takes no lock.
  inline bool any() const noexcept { return any_.load(std::memory_order_relaxed); }
  /// Adds a graph memory, unless it is in the list. The graph memory's destructor removes it from the list.
  void add(graph_memory& memory) noexcept;

  /// Frees a block or reports a misuse. Returns false if the pointer is in none of the memories. The free of a memory's
  /// last block can destroy that memory, and with it the pool and this list.
  bool free(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  /// Describes the block that holds the address; nullopt if none of the memories holds the address.
  std::optional<block_info> find(void const* pointer) noexcept;
  /// Returns the live block that starts at the address, for a caller that owns it; nullopt if there is none.
  std::optional<owned_block> find_owned(void const* pointer) noexcept;
  /// Does what graph_memory::record_use does. Returns false if the pointer is in none of the memories.
  bool record_use(stream_key const& key, void const* pointer) noexcept;

private:
  friend class graph_memory;
  void remove(graph_memory& memory) noexcept;

  std::atomic<bool> any_{false};
  sync::mutex mutex_;
  intrusive_list<graph_memory> items_ GPUMEM_GUARDED_BY(mutex_);
};

} // namespace gpumem::detail
