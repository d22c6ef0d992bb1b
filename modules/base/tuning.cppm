// The tuning constants of pools and streams.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
export module gpumem:tuning;
import :std;
import :sync;

/// Values that change speed and memory, but not what the library does. Names with `bytes` are in bytes; a `fraction` n
/// stands for 1/n.
///
/// "Utilization" says what half and double the value do to the utilization of ten recorded traces of one stream, on the
/// simulated device. It gives the least and the greatest change, if any is .004 or more.
namespace gpumem::detail::tuning {

using namespace std::chrono_literals;

// Rounding and caches of freed blocks.

/// The largest size that is rounded up to a size class while a pool has one shard. With more shards the largest medium
/// size is rounded too, since a thread stops the others for a block that it lacks. Rounding of all sizes wasted .01 to
/// .02 of recorded traces.
/// Utilization: half -.007 to +.008, double -.017 to +.005.
export inline constexpr std::size_t largest_rounded_bytes = std::size_t{256} << 10;
/// Most bytes of one kind of size in all thread caches of a pool.
/// Utilization: no change.
export inline constexpr std::size_t max_cached_bytes = std::size_t{64} << 20;
/// Bytes of one kind of size that thread caches may hold for each shard, as far as the other limits allow.
/// Utilization: half -.010 to +.006, double -.006 to +.014.
export inline constexpr std::size_t cached_bytes_per_shard = std::size_t{4} << 20;
/// Part of the reserved bytes that thread caches may hold in small blocks, and in any case at most.
/// Utilization, small_cache_fraction: no change; max_cache_fraction: no change.
export inline constexpr std::size_t small_cache_fraction = 100, max_cache_fraction = 2;
/// Where threads have shards, the limit on medium blocks in thread caches is multiplied by this: for a block that it
/// lacks, a thread locks all shards. With a quarter of it, two fifths of the medium requests of 16 threads were served
/// by shards; now a tenth is.
/// Utilization: no change.
export inline constexpr std::size_t medium_cache_factor = 4;
/// Bytes that a thread cache claims of the pool's budget at once.
/// Utilization: no change.
export inline constexpr std::int64_t claimed_bytes = 64 << 10;
/// The largest block that is cached, as a part of the budget of large blocks. Without this bound two of four recorded
/// traces used .01 and .03 less of the reserved memory. With a ninth one of them used .02 more, but two others were a
/// seventh slower on an H200.
/// Utilization: half +.005 to +.011, double none.
export inline constexpr std::size_t large_block_fraction = 4;
/// Blocks up to this size are cached, if the budget has them.
/// Utilization: half none, double +.005 to +.011.
export inline constexpr std::size_t always_cached_bytes = std::size_t{1} << 20;
/// Frees of other streams after which a stream cache gives way to another stream.
/// Utilization: no change.
export inline constexpr std::uint32_t max_foreign_frees = 16;
/// Frees of one thread without budget after which all thread caches are flushed.
/// Utilization: no change.
export inline constexpr std::uint32_t max_budget_misses = 1 << 20;
/// Every 32nd free over budget searches for a stale stream cache: one without an insert for 4,096 frees over budget.
/// Utilization, stale_scan_interval: no change; stale_after: no change.
export inline constexpr std::uint32_t stale_scan_interval = 32, stale_after = 4096;
/// A large cache scores its hits and evictions. A hit saves two calls of a shard; an eviction costs a part of one. That
/// it costs a fifth of a hit is a guess.
/// Utilization, large_hit_score: half -.009 to +.011, double +.004; large_trial_score: half -.004, double -.006 to
/// +.012; max_large_score: half -.006 to +.023, double -.017 to +.004.
export inline constexpr int large_hit_score = 5, large_trial_score = 16, max_large_score = 256;
/// Blocks that a large cache without hits skips before the next trial.
/// Utilization: half -.005 to +.009, double -.006 to +.005.
export inline constexpr std::uint32_t max_skipped_blocks = 1024;
/// From this size class on, a stream cache also serves a request by the next two classes: they are at most a quarter
/// larger.
/// Utilization: half -.015 to +.012, double +.018.
export inline constexpr unsigned first_close_class = 8;
/// Most blocks of one size on a quick list.
/// Utilization: no change.
export inline constexpr std::size_t max_quick_blocks = 64;
/// Least blocks of a request's size in a range from which several are split off at once.
/// Utilization: half -.044, double -.044 to +.009.
export inline constexpr std::size_t min_blocks_for_run = 16;

// Events.

/// Frees that a thread cache, or a stream's free list, counts before it adds them to the stream's count.
/// Utilization: half none, double +.005.
export inline constexpr std::uint32_t frees_per_batch = 64;
/// Frees of a stream after which one records an event, if several streams use the pool.
/// Utilization: no change.
export inline constexpr std::uint32_t frees_per_event = 1024;
/// Part of the reserved bytes after which a stream's free records an event; the second one near the limit.
/// Utilization, event_fraction: half +.005, double +.005; event_fraction_near_limit: no change.
export inline constexpr std::size_t event_fraction = 2, event_fraction_near_limit = 256;
/// Between two events a stream that may be destroyed may have frees without an event, here called silent. It may have
/// one for each 64 frees that events have covered, at most 63 frees and 64 MiB.
/// Utilization, covered_frees_per_silent: no change; max_silent_frees: no change.
export inline constexpr std::uint32_t covered_frees_per_silent = 64, max_silent_frees = 63;
/// The other streams of a pool record no event for fewer bytes either, except near the limit.
/// Utilization: no change.
export inline constexpr std::size_t max_silent_bytes = std::size_t{64} << 20;
/// Spare events that a context, and a stream, keep.
/// Utilization: no change.
export inline constexpr int spare_events = 4;

// Polls and reuse across streams.

/// A stream is behind if an event is open this long after its record.
/// Utilization: half -.014 to +.006, double +.004 to +.006.
export inline constexpr sync::duration behind_after = 5us;
/// Polls may take this share of the time at least: without polls streams share no memory. `effort` can raise it.
/// Utilization: no change.
export inline constexpr double min_poll_share = 1.0 / 16;
/// The longest burst of polls; later polls are limited to the share of the time.
/// Utilization: no change.
export inline constexpr sync::duration max_poll_burst = 200us;
/// The time to record and query one event, on an H200. Not measured at each poll: a preempted thread would count too
/// much.
/// Utilization: no change.
export inline constexpr sync::duration poll_cost = 400ns;
/// The longest polls of young events, before a move of pages and in trim(). A stream without work completes an event in
/// 2 us, and a move costs far more. Shorter than the time after which a stream counts as behind.
/// Utilization: half none, double +.005.
export inline constexpr sync::duration max_young_poll_time = 4us;
/// A block with uses joins a ready range up to this many times its size: otherwise a small block would keep a large
/// range from all other streams.
/// Utilization: half -.035, double -.024.
export inline constexpr std::size_t max_join_factor = 16;

// Growth and release.

/// A pool is near its limit if less than this part of it is left.
/// Utilization: half +.006, double none.
export inline constexpr std::size_t near_limit_fraction = 4;
/// Memory pressure ends when this part of the pool is free.
/// Utilization: no change.
export inline constexpr std::size_t pressure_fraction = 16;
/// A new chunk has this part of the bytes that the shard has, within the bounds. Larger chunks fragment less; smaller
/// ones reserve less that is never used. On recorded traces these values kept more of the reserved memory in use than
/// all others that were tried.
/// Utilization: no change.
export inline constexpr std::size_t chunk_fraction = 6;
/// Utilization, min_chunk_bytes: no change; max_chunk_bytes: no change.
export inline constexpr std::size_t min_chunk_bytes = std::size_t{2} << 20, max_chunk_bytes = std::size_t{512} << 20;
/// One of several shards grows by this part of its bytes at least.
/// Utilization: no change.
export inline constexpr std::size_t shard_growth_fraction = 8;
/// A page is this part of the mapped bytes, within bounds. On recorded traces larger pages left more memory unused, and
/// smaller ones moved more often.
/// Utilization: half -.037 to +.006, double +.004 to +.038.
export inline constexpr std::size_t page_fraction = 150;
/// Under a limit a page is this part of the limit, within bounds.
/// Utilization: no change.
export inline constexpr std::size_t limit_page_fraction = 4096;
/// A page is worth moving if it has three quarters of the usual size.
/// Utilization: half -.096 to +.014, double -.078 to -.006.
export inline constexpr std::size_t min_moved_quarters = 3;
/// A thread waits for the work of its own stream only if pages would move for at least this part of the new pages.
/// Utilization: no change.
export inline constexpr std::size_t own_work_fraction = 2;
/// A block of this part of its shard's bytes goes to the upper end of its range: the next pages are mapped beside it.
/// Utilization: half -.105 to +.013, double -.018 to +.012.
export inline constexpr std::size_t high_block_fraction = 16;
/// Segments of streams start at multiples of this part of the addresses.
/// Utilization: no change.
export inline constexpr std::size_t segment_fraction = 64;
/// The longest burst of moves of pages. With 5 ms recorded traces of 0.2 s reserved a quarter more: they made new pages
/// instead, which stay scattered.
/// Utilization: no change.
export inline constexpr sync::duration max_move_burst = 50ms;
/// The time to move a page or to make one, whatever its size: 33 us and 27 us on an H200. Not measured at each page, so
/// that neither reads a clock.
/// Utilization: no change.
export inline constexpr sync::duration page_cost = 40us;
/// The time of the polls before a move, charged even if no page moves.
/// Utilization: no change.
export inline constexpr sync::duration move_poll_cost = page_cost / 4;
/// Background release begins this part of the threshold beyond it.
/// Utilization: no change.
export inline constexpr std::size_t release_slack_fraction = 8;

// Shards.

/// A thread may steal this many times before its own shard grows instead, since each steal locks all shards. Steals
/// more than `steal_window` calls apart do not add up.
/// Utilization: half none, double +.006.
export inline constexpr unsigned max_steals = std::max(sync::contention_threshold / 8, 2u);
/// Utilization: no change.
export inline constexpr std::uint64_t steal_window = 1024;
/// Where threads have shards, the peak of the live bytes is exact to this part of the reserved bytes. With 1/512 for
/// each shard, two threads spent a third of their time on the shared count.
/// Utilization: no change.
export inline constexpr std::size_t peak_fraction = 16;
/// reserve() prepares host memory for this number of blocks and streams. When the first calls did that themselves, 16
/// streams of short kernels lost 2 % of their first 2,000 steps to it.
/// Utilization, prepared_blocks: half none, double +.006; prepared_streams: half none, double +.006.
export inline constexpr std::size_t prepared_blocks = 1024, prepared_streams = 16;

// Waits of the host.

/// The longest wait of a request that finds no memory, and of record_use(), for streams to complete their work.
/// Utilization: no change.
export inline constexpr sync::duration max_host_wait = 1s;
/// The longest pause between the polls of such a wait.
/// Utilization: half +.005 to +.014, double +.005 to +.006.
export inline constexpr sync::duration max_poll_pause = 5ms;
/// The longest pause between the passes of the library thread, and between the polls of a wait without a time limit.
/// Utilization: no change.
export inline constexpr sync::duration max_pass_pause = 1ms;
/// Each pause is longer than the one before by this.
/// Utilization: half +.006, double none.
export inline constexpr sync::duration pause_step = 20us;
/// Passes without effect, about a second, after which the library thread no longer looks for memory to give back.
/// Utilization: half +.006, double +.006.
export inline constexpr unsigned max_idle_passes = 1000;

} // namespace gpumem::detail::tuning
