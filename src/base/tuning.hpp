// The tuning constants of pools and streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>

/// Values that change speed and memory use, but not what the library does. Names with `bytes` are in bytes. A
/// `fraction` n stands for 1/n.
///
/// The terms are those of the glossary in modules/README.md.
///
/// Utilization is the peak of the live bytes divided by the peak of the reserved bytes. "Utilization" below says how
/// half and double the value change it on ten recorded traces of one stream, on the simulated device. It gives the
/// least and the greatest change, if any is .004 or more. These figures are older than the rule that blocks of all
/// sizes lie at the lower end of their range.
namespace gpumem::detail::tuning {

using namespace std::chrono_literals;

// Rounding and caches of freed blocks.

/// In a pool with one shard, sizes up to this are rounded up to a size class. With more shards, all sizes up to the
/// largest medium size are rounded. More requests then find a block in the thread's cache; a thread that finds none may
/// have to lock all shards. Rounding of all sizes wasted .01 to .02 of the memory of recorded traces.
/// Utilization: half -.007 to +.008, double -.017 to +.005.
inline constexpr std::size_t largest_rounded_bytes = std::size_t{256} << 10;
/// Most bytes of one kind of size (small, medium or large) in all thread caches of a pool.
/// Utilization: no change.
inline constexpr std::size_t max_cached_bytes = std::size_t{64} << 20;
/// For each shard of the pool, the thread caches may hold this many bytes of one kind of size, within the other limits.
/// Utilization: half -.010 to +.006, double -.006 to +.014.
inline constexpr std::size_t cached_bytes_per_shard = std::size_t{4} << 20;
/// small_cache_fraction: part of the reserved bytes that thread caches may hold in small blocks. max_cache_fraction:
/// the largest part that they may hold in blocks of any one kind of size.
/// Utilization, small_cache_fraction: no change; max_cache_fraction: no change.
inline constexpr std::size_t small_cache_fraction = 100;
inline constexpr std::size_t max_cache_fraction = 2;
/// In a pool with several shards, the limit on medium blocks in thread caches is multiplied by this. A thread that
/// finds no block in its cache may have to lock all shards. With a quarter of this value, shards served two fifths of
/// the medium requests of 16 threads; now they serve a tenth.
/// Utilization: no change.
inline constexpr std::size_t medium_cache_factor = 4;
/// The largest block that is cached, as a part of the budget for large blocks. Without this bound, the utilization of
/// two of four recorded traces was .01 and .03 lower. With a ninth, that of one trace was .02 higher, but two others
/// were a seventh slower on an H200.
/// Utilization: half +.005 to +.011, double none.
inline constexpr std::size_t large_block_fraction = 4;
/// Blocks up to this size are cached whatever `large_block_fraction` says, if the budget has room.
/// Utilization: half none, double +.005 to +.011.
inline constexpr std::size_t always_cached_bytes = std::size_t{1} << 20;
/// A stream cache holds blocks of one stream at a time. It is stale if it got no block in this many frees of its thread
/// that found no room. Such frees evict blocks of stale stream caches.
/// Utilization: no change.
inline constexpr std::uint32_t stale_after = 32;
/// If a range has room for at least this many blocks of the request's size, several are split off in one step.
/// Utilization: half -.044, double -.044 to +.009.
inline constexpr std::size_t min_blocks_for_run = 16;

// Events.

/// If several streams use the pool, one free in this many frees of a stream records an event.
/// Utilization: no change.
inline constexpr std::uint32_t frees_per_event = 1024;
/// A free records an event on its stream if this part of the reserved bytes was freed since the stream's last event.
/// Near the pool's limit, event_fraction_near_limit applies.
/// Utilization, event_fraction: half +.005, double +.005; event_fraction_near_limit: no change.
inline constexpr std::size_t event_fraction = 2;
inline constexpr std::size_t event_fraction_near_limit = 256;
/// Between two events of a mortal stream there may be one silent free for each 64 frees that events have covered, up to
/// 63 silent frees of 64 MiB together.
/// Utilization, covered_frees_per_silent: no change; max_silent_frees: no change.
inline constexpr std::uint32_t covered_frees_per_silent = 64;
inline constexpr std::uint32_t max_silent_frees = 63;
/// The most spare events that a stream keeps for itself, and the number of spare events that each context is given.
/// Utilization: no change.
inline constexpr int spare_events = 4;

// Polls and reuse across streams.

/// A stream is behind the host if an event is still not complete this long after its record.
/// Utilization: half -.014 to +.006, double +.004 to +.006.
inline constexpr std::chrono::nanoseconds behind_after = 5us;
/// The longest time for which recently recorded events are polled before a move of pages, and in trim(). A stream
/// without work completes an event in 2 us, and a move costs far more. Shorter than `behind_after`, so that such a
/// stream does not count as behind.
/// Utilization: half none, double +.005.
inline constexpr std::chrono::nanoseconds max_young_poll_time = 4us;
/// A block that streams still use can be joined with an unused free range. That is done only if the range is at most
/// this many times as large as the block. Otherwise a small block would keep a large range from all other streams.
/// Utilization: half -.035, double -.024.
inline constexpr std::size_t max_join_factor = 16;

// Growth and release.

/// A new chunk has this part of the bytes that its shard has, between `min_chunk_bytes` and `max_chunk_bytes`. Larger
/// chunks fragment less; smaller chunks reserve less memory that is never used. On recorded traces these values kept
/// more of the reserved memory in use than all others that were tried.
/// Utilization: no change.
inline constexpr std::size_t chunk_fraction = 6;
/// Utilization, min_chunk_bytes: no change; max_chunk_bytes: no change.
inline constexpr std::size_t min_chunk_bytes = std::size_t{2} << 20;
inline constexpr std::size_t max_chunk_bytes = std::size_t{512} << 20;
/// The size of a new page is this part of the mapped bytes, within the smallest and the largest page size. On recorded
/// traces larger pages left more memory unused, and smaller pages were moved more often.
/// Utilization: half -.037 to +.006, double +.004 to +.038.
inline constexpr std::size_t page_fraction = 150;
/// If a pool has a limit, a new page has this part of the limit, between the smallest and the largest page size.
/// Utilization: no change.
inline constexpr std::size_t limit_page_fraction = 4096;
/// A page is worth moving if it has at least this many quarters of the usual page size.
/// Utilization: half -.096 to +.014, double -.078 to -.006.
inline constexpr std::size_t min_moved_quarters = 3;
/// A shard gets a further address range once its newest one has fewer addresses than this many times the shard's bytes.
/// Utilization: -.013 to +.004 beside one range of the largest size from the start.
inline constexpr std::size_t addresses_per_byte = 64;
/// A segment is a run of addresses in which the memory of one stream grows. Segments start at multiples of this part of
/// the reserved addresses.
/// Utilization: no change.
inline constexpr std::size_t segment_fraction = 64;
/// The longest burst of moves of pages: the most time for moves that a pool saves. With the time that moves of all its
/// pages take, a recorded trace lost .01.
/// Utilization: no change.
inline constexpr std::chrono::nanoseconds max_move_burst = 50ms;
/// A growth without saved time makes pages of this size, at the price `page_cost`. If pages cost more, they are larger,
/// so that growth takes the same time. Small pages are more often free as a whole, and can then move. In a simulation
/// of 14 recorded traces at their pace, half changed utilization by at most .01; double by -.07 to +.00. Kernels of 20
/// us on 16 streams took 2.1 times as long at first as on memory allocated before; half 2.5, double 2.0.
inline constexpr std::size_t unpaid_page = std::size_t{6} << 20;
/// The time to move or to make a page, whatever its size: 33 us and 27 us on an H200. A pool begins with this value,
/// and then uses the median of its recent growths and moves.
/// Utilization: no change.
inline constexpr std::chrono::nanoseconds page_cost = 40us;
/// The time that the polls before a move are assumed to take. It counts against the limit on moves even if no page
/// moves.
/// Utilization: no change.
inline constexpr std::chrono::nanoseconds move_poll_cost = page_cost / 4;

// Shards.

/// A thread gets a shard of its own after `contention_threshold` collisions with other threads. A collision counts for
/// one to two windows of this many locked calls of the first shard.
/// Utilization: no change.
inline constexpr std::uint64_t collision_window = std::uint64_t{1} << 16;

// Waits of the host.

/// The longest time for which a request that finds no memory, or record_use(), waits for streams to complete their
/// work.
/// Utilization: no change.
inline constexpr std::chrono::nanoseconds max_host_wait = 1s;
/// The longest pause between two polls in such a wait.
/// Utilization: half +.005 to +.014, double +.005 to +.006.
inline constexpr std::chrono::nanoseconds max_poll_pause = 5ms;
/// A pass of the library thread looks for memory for waiting requests, and for memory to give back. This is the longest
/// pause between two passes, and between two polls in a wait without a time limit.
/// Utilization: no change.
inline constexpr std::chrono::nanoseconds max_pass_pause = 1ms;

} // namespace gpumem::detail::tuning
