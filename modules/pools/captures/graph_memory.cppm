// Graph memory, which goes back only when no handle to it and no live block of it is left.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:graph_memory;
import :block;
import :cuda;
import :device;
import :error;
import :graph_chunks;
import :graph_uses;
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
  void* take(stream_key const& key, std::size_t bytes, std::size_t alignment)
      __attribute__((requires_capability(mutex_)));
  expected<void*, failure> grow(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  bool add(chunk const& drawn) noexcept;

  void free_or_report(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  // After `done` the caller calls drop_live(), which can destroy this object. Sets `wrong` for `refused`.
  free_outcome free(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                    late_misuse& wrong) noexcept;
  free_outcome explain(stream_key const& key, void const* pointer, std::optional<std::size_t> bytes,
                       late_misuse& wrong) const noexcept __attribute__((requires_capability(mutex_)));
  // Returns the blocks to restore in the order of their addresses, and reserves the host's memory for them. Throws what
  // restore() throws.
  std::vector<restored_block> plan_restore(std::span<memory_range const> live)
      __attribute__((requires_capability(mutex_)));
  void free_everything() noexcept __attribute__((requires_capability(mutex_)));
  void make_live(restored_block const& one) noexcept __attribute__((requires_capability(mutex_)));
  bool declare_use(stream_key const& key, void const* pointer, late_misuse& wrong) noexcept;

  std::unique_ptr<pool_upstream> const upstream_; // keeps alive the pool that owns *listed_in_
  std::optional<device> const device_;
  sync::mutex growth_mutex_; // held while the upstream is called
  sync::mutex mutex_;
  range_allocator ranges_ __attribute__((guarded_by(mutex_)));
  graph_chunks chunks_ __attribute__((guarded_by(mutex_)));
  graph_uses uses_ __attribute__((guarded_by(mutex_)));
  statistics counts_ __attribute__((guarded_by(mutex_)));
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
  void add(graph_memory& one) noexcept;

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
  void remove(graph_memory& one) noexcept;

  std::atomic<bool> any_{false};
  sync::mutex mutex_;
  intrusive_list<graph_memory> items_ __attribute__((guarded_by(mutex_)));
};

} // namespace gpumem::detail
