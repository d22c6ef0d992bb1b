// The stream cache: the small and medium blocks of one stream in a thread cache, by size class.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:stream_cache;
import :block;
import :std;
import :stream_timeline;
import :tuning;

namespace gpumem::detail {

/// Lists of small and medium blocks, and counts of the stream's frees. Guarded by the lock of the thread cache that it
/// is a part of.
export struct stream_cache {
  stream_timeline* timeline = nullptr;
  std::uint32_t count = 0;            ///< number of blocks
  std::uint32_t unrecorded_frees = 0; ///< frees since the last flush_counters(), also of large blocks
  std::size_t unrecorded_bytes = 0;
  std::uint32_t foreign_frees = 0; ///< frees of other streams that share this cache, since the last insert
  std::uint64_t last_insert = 0;   ///< the thread cache's count of frees without budget, at the last insert
  std::array<block*, size_class::count> lists{}; ///< by class number; the newest first

  /// Removes and returns the newest block of this class; null if there is none. For classes from `first_close_class` on
  /// also tries the next two classes, whose blocks are at most a quarter larger. With random sizes that saves many
  /// searches of free ranges.
  [[gnu::always_inline]] inline block* pop_fitting(unsigned number) noexcept {
    if (lists[number]) [[likely]]
      return &pop(lists[number]);
    if (number < tuning::first_close_class || number + 2 >= size_class::count) return nullptr;
    if (auto& next = lists[number + 1]) return &pop(next);
    auto& after = lists[number + 2];
    return after ? &pop(after) : nullptr;
  }
  inline void push(block& freed) noexcept {
    auto& to = lists[freed.class_number];
    freed.next = to;
    to = &freed;
    ++count;
  }
  inline block& pop(block*& from) noexcept {
    auto& found = *from;
    from = found.next;
    --count;
    return found;
  }
  /// Removes and returns a block of the largest class. The cache must not be empty.
  block& pop_largest() noexcept;

  // `threshold`, here and below: cache_limits::event_threshold_bytes().
  /// Gives the cache to a stream if the cache is empty, and returns whether it was. A slow path, as are the two others
  /// with these attributes: with preserve_most the function saves the registers, so that its callers need not.
  [[clang::preserve_most, gnu::visibility("hidden")]] bool bind_if_empty(stream_timeline& next,
                                                                         std::size_t threshold) noexcept;
  /// Counts a free of `stream`, whose cache this is. Returns whether this free should record an event. If so, the block
  /// is not cached but freed in its shard, where an event is recorded under the shard's lock.
  [[gnu::always_inline]] inline bool event_due(stream_timeline& stream, std::size_t bytes,
                                               std::size_t threshold) noexcept {
    if (threshold == SIZE_MAX) return stream.event_request().raised(); // frees are not counted then
    unrecorded_bytes += bytes;
    bool const many = ++unrecorded_frees >= tuning::frees_per_batch || unrecorded_bytes >= threshold;
    if (many) [[unlikely]]
      flush_counters(stream, threshold);
    return many || stream.event_request().raised();
  }
  /// Like event_due(), but for a stream without a stream cache: another stream has the one that both share.
  [[clang::preserve_most, gnu::visibility("hidden")]] static bool
  event_due_unbound(stream_timeline& stream, std::size_t bytes, std::size_t threshold) noexcept;

private:
  [[clang::preserve_most, gnu::visibility("hidden")]] void flush_counters(stream_timeline& stream,
                                                                          std::size_t threshold) noexcept;
};

} // namespace gpumem::detail
