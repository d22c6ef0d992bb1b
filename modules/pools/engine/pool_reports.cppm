// Descriptions of a pool: of its blocks, its statistics, reports about leaks and memory, and a check for tests.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <string>
export module gpumem:pool_reports;
import :block;
import :error;
import :frees;
import :intrusive_list;
import :pool_parts;
import :std;
import :stream_timeline;

namespace gpumem {

/// Describes the block or the free range in which a pointer lies.
export struct block_info {
  void* base = nullptr;      ///< start of the block or range
  std::size_t bytes = 0;     ///< bytes that the caller requested; 0 for free memory
  std::size_t allocated = 0; ///< bytes of the whole block, rounded up, or of the free range
  std::uint64_t stream = 0;  ///< id of the stream for which the block was allocated; 0 for free memory
  bool live = false;         ///< whether the block is allocated; false for free memory
};

/// A part of a pool's reserved memory: a live block, a free range, or a freed block in a thread's cache.
export struct memory_range {
  void* base = nullptr;         ///< start of the range
  std::size_t bytes = 0;        ///< size of the range
  std::size_t requested = 0;    ///< bytes that the caller requested; 0 if the range is not live
  std::uint64_t stream = 0;     ///< id of the stream for which the live block was allocated; 0 if the range is not live
  bool live = false;            ///< whether the range is a live block
  void* region = nullptr;       ///< start of the contiguous memory that holds the range: a chunk, or a run of pages
  std::size_t region_bytes = 0; ///< size of that contiguous memory
};

namespace detail {

inline memory_range range_of(block const& block) noexcept {
  memory_range range{block.pointer(), block.bytes};
  if (!block.is_live()) return range;
  range.requested = block.requested;
  range.stream = block.stream->id();
  range.live = true;
  return range;
}

// Sets the region of each of these adjacent ranges: the memory from the first range to the last.
inline void end_region(std::span<memory_range> ranges) noexcept {
  if (ranges.empty()) return;
  auto& last = ranges.back();
  auto* const end = static_cast<char*>(last.base) + last.bytes;
  for (auto& each : ranges) {
    each.region = ranges.front().base;
    each.region_bytes = static_cast<std::size_t>(end - static_cast<char*>(ranges.front().base));
  }
}

/// Describes a live block. Only the owner of the block may rely on it, since the owner can free the block at any time.
export struct owned_block {
  std::size_t bytes;       ///< bytes that the caller requested
  stream_timeline* stream; ///< stream for which the block was allocated
  /// Id of the graph capture in which the block was allocated. 0 if it was allocated in none, if that capture has
  /// ended, or if another thread has made the capture's newest request for memory.
  std::uint64_t capture = 0;
};

// The number and the bytes of a pool's live blocks, and up to `shown` of the largest blocks in descending order.
struct live_blocks {
  static constexpr std::size_t shown = 5;
  std::size_t count = 0;
  std::size_t bytes = 0;
  std::vector<block_info> largest;

  // Counts a block, and keeps its description if it is one of the largest. Throws std::bad_alloc.
  void add(block_info const& info) {
    ++count;
    bytes += info.bytes;
    auto at = largest.begin();
    while (at != largest.end() && at->bytes >= info.bytes) ++at;
    largest.insert(at, info);
    if (largest.size() > shown) largest.pop_back();
  }
};

} // namespace detail

} // namespace gpumem

namespace gpumem::detail {

/// Returns whether the environment variable GPUMEM_REPORT_LEAKS is 1 or on; false if it is unset, empty, 0 or off.
/// Throws std::invalid_argument for any other value.
export bool reports_leaks();

/// Adds a pool to the report as long as this object lives. When the process exits, the report is written to standard
/// error, just before the driver shuts down. For each pool with live blocks it tells their number, and describes the
/// largest ones. Later frees do nothing, so a block whose owner is destroyed after the report counts as never freed.
/// Any thread.
export class leak_report {
public:
  using reader = live_blocks (*)(void* pool);

  /// `read(pool)` returns the live blocks of the pool, and may throw. The name and the pool must outlive this object.
  leak_report(char const* name, reader read, void* pool);
  ~leak_report();
  leak_report(leak_report const&) = delete;
  leak_report& operator=(leak_report const&) = delete;

private:
  friend class intrusive_list<leak_report>;
  static void write_all() noexcept;
  void write() const noexcept;

  char const* const name_;
  reader const read_;
  void* const pool_;
  list_links<leak_report> links_;
};

/// Returns a text. Its first line has the pool's reserved, live, cached and free bytes. Each further line counts the
/// live blocks of one stream whose sizes round up to the same power of two. Cached blocks and free ranges have such
/// lines too; those of free ranges name no stream. Takes the locks of all shards, for a time in proportion to the
/// number of blocks. Throws std::bad_alloc.
export std::string describe_memory(pool_parts& parts, shard_frees& frees);

/// Appends the failure and the text of describe_memory() to the file that the pool's option `failure_report` names.
/// Does nothing if the file cannot be written.
export void append_failure_report(pool_parts& parts, shard_frees& frees, failure const& failure) noexcept;

} // namespace gpumem::detail
