// What the handles of one pool share: blocks, chunks, their order, and the way from a request to memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
#include <gpumem/pool_options.hpp>
#include <string>
export module gpumem:pool_engine;
import :block;
import :chunks;
import :device;
import :error;
import :holder;
import :leftover;
import :live_meter;
import :magazines;
import :pool_ladder;
import :pool_order;
import :pool_request;
import :pool_supply;
import :pressure;
import :ranges;
import :shards;
import :size_class;
import :std;
import :stream;
import :sync;
import :tags;
import :timeline;
import :waiter;

namespace gpumem {

export {
  using gpumem::hardening_options;
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

/// What became of a free: a misuse was reported and nothing happened; it was done; it was done, of the last live block
/// of a pool without handles, which is now the caller's to close.
enum class free_result : std::uint8_t { refused, done, last };

/// Allocations and frees that a magazine serves take the lock of a slot; those that the thread's shard serves take that
/// shard's, and all others those of all shards. Under locks driver calls on streams are made, but no calls upstream,
/// waits or synchronisation. Nothing in a free allocates host memory. Disposes of itself after close().
export class pool_engine final : private leftover, private pool_supply::listener, public pressure_call::listener {
public:
  /// Throws what upstream's failure throws, std::invalid_argument, std::bad_alloc.
  pool_engine(std::unique_ptr<pool_upstream> upstream, pool_options options);

  [[gnu::always_inline]] inline expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                                                      std::size_t alignment) noexcept {
    auto const size = size_class::of(bytes, largest_numbered_.load(std::memory_order_relaxed));
    auto const me = sync::thread_number();
    if (alignment <= granule && !key.is_host()) [[likely]] {
      if (auto* const near = magazines_.take(key.order(), size, bytes, me)) return near->pointer();
    }
    return allocate_shared(key, size, bytes, alignment);
  }
  /// What became of a free near the calling thread.
  struct near_free {
    tag use; ///< that ends
    magazines::result put;
    shard_list::found freed; ///< if it lies in the thread's own shard
    inline bool done() const noexcept { return put.kept && !put.out; }
  };
  /// Keeps what is freed near the calling thread, if it may be; without `bytes` any size is right. What is left to do
  /// `finish` does.
  [[gnu::always_inline]] inline near_free keep(stream_key const& key, void* pointer,
                                               std::optional<std::size_t> bytes) noexcept {
    auto const me = sync::thread_number();
    auto& home = shards_.home_of(me);
    auto* const freed = home.granted_at(pointer);
    bool const may = freed && may_keep(*freed, key, bytes);
    // The epoch is read after all that the caller has enqueued, and before anything becomes of the block.
    tag const use{&key.order(), end_use(key, freed, bytes)};
    if (!may) [[unlikely]]
      return {use, {false, nullptr}, {freed, &home}};
    return {use, magazines_.put(*freed, use, me), {freed, &home}};
  }
  /// `near`: what `keep` has done for the same call.
  free_result finish(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                     near_free const& near) noexcept;
  /// Both.
  inline free_result deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
    return finish(key, pointer, bytes, keep(key, pointer, bytes));
  }
  /// False: a misuse was reported. Throws cuda_error, std::bad_alloc.
  bool record_use(stream_key const& key, void* pointer);
  /// The uses on other streams recorded so far of a live block.
  tag_set uses_of(void const* pointer) noexcept;
  /// Time grows with the blocks of a chunk.
  std::optional<block_info> find(void const* pointer);
  std::size_t trim(std::size_t keep);
  /// Throws what upstream's failure throws, std::bad_alloc.
  std::size_t reserve(std::size_t bytes);
  /// Throws std::invalid_argument.
  void set_limit(std::size_t bytes);
  /// Keeps the pages in which the bytes lie where they are, until as many calls of unpin; false: they are not all the
  /// pool's.
  bool pin(void const* pointer, std::size_t bytes);
  void unpin(void const* pointer, std::size_t bytes);
  /// As virtual_pages::export_page; invalid_argument of what is not in a page of the pool.
  expected<int, failure> export_page(void const* pointer);
  /// False: not all of what keeps free memory from going was seen complete. Throws std::bad_alloc.
  bool settle(sync::duration longest);
  figures read_figures();
  /// `live`: bytes, as the users see them. Throws std::bad_alloc.
  std::string describe_waiting(std::size_t live);
  pool_paths read_paths();
  /// Whether every byte is in exactly one place: granted + cached + free = reserved, no overlap, shelves and neighbours
  /// agree, and what is cached is within the credits.
  bool consistent();

  /// None over upstreams without one.
  inline std::optional<device> where() const noexcept { return supply_.where(); }
  inline pool_options const& options() const noexcept { return options_; }
  inline pool_upstream& upstream() noexcept { return supply_.upstream(); }
  inline bool lost() const noexcept { return supply_.lost(); }

  /// The outcome of a request that asks to wait.
  enum class waiting : std::uint8_t {
    parked,   ///< it waits, and may be gone
    answered, ///< by settle(), or it was cancelled
    last,     ///< answered; the pool has neither handle nor block any more, and is the caller's to close
    turn,     ///< the caller tries to allocate for it, and then calls end_turn
  };
  /// With what the pool knew when the turn began, of frees and completion.
  struct turn {
    waiting what;
    std::uint64_t since = 0;
  };
  /// Takes back a part of a request of which another part was refused. That is not news for requests of several parts:
  /// two of them would call each other for ever.
  void give_back(stream_key const& key, void* pointer) noexcept;
  /// Whether there could be the memory for which a request asks: it asks for a turn alone, or is of several parts.
  expected<void*, failure> may_go_on(waiter const& item) noexcept;
  void note_holder(holder& whose, holder_event what) noexcept;
  /// Throws std::bad_alloc.
  void add_pressure_call(pressure_call& item);
  void remove_pressure_call(pressure_call& item) noexcept;
  /// As of waiting_state, without the attempt, which a hardened pool makes otherwise.
  turn begin_turn(waiter& item) noexcept;
  turn end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept;
  /// `last`: as above.
  bool withdraw(waiter& item, bool& last) noexcept;
  /// Requests wait: no thread keeps what it frees.
  inline bool has_waiting() const noexcept { return door_.load(std::memory_order_relaxed) == door::queue; }
  /// From now on requests are refused with outcome::closed, and those that wait are answered with it.
  void refuse_requests() noexcept;

  /// No handle is left; true if no live block and no request is either. Else the last one's end tells.
  bool abandon() noexcept;
  /// No handle and no live block is left. Gives everything upstream; what the host has not seen complete, by the
  /// library thread. The engine may be gone when this returns.
  void close() noexcept;

private:
  bool consistent_with(thread_counts const& near);
  static void survey(pool_shard& in, figures& f, std::vector<timeline const*>& users);
  inline shard_list::from everywhere() const noexcept { return {shards_, *shards_.all().front()}; }
  std::int64_t live_blocks() const noexcept;
  std::size_t free_bytes() const noexcept;
  std::size_t live_bytes() const noexcept;

  // pool_allocate.cpp: from a request to memory.
  expected<void*, failure> allocate_shared(stream_key const& key, size_class size, std::size_t bytes,
                                           std::size_t alignment) noexcept;
  expected<void*, failure> allocate(pool_request& what);
  expected<void*, failure> refuse(pool_request const& what, outcome why) noexcept;
  std::optional<outcome> refusal_at_door(pool_request const& what) noexcept;
  void* allocate_near(pool_request& what);
  void* reuse_now(pool_request const& what);
  void* reuse_alone(pool_request const& what);
  void wait_for_put_out(shard_locks& held);
  expected<void*, failure> grow(pool_request const& what, shard_locks& held, bool exact);
  expected<void*, failure> grow_in_place(pool_request const& what, shard_locks& held);
  void* grant(pool_request const& what, pool_place place);
  block& take(pool_request const& what, pool_place place);
  static void note_borrowing(pool_shard& by) noexcept;
  [[gnu::always_inline]] inline void count_live(pool_shard& in, std::int64_t change, std::int64_t nearby) noexcept {
    if (!shards_.single()) return count_live_of_many(in, change, nearby);
    live_.count_alone(in.live, change, nearby);
  }
  void count_live_of_many(pool_shard& in, std::int64_t change, std::int64_t nearby) noexcept;

  // pool_drain.cpp: out of memory, the last resort.
  void* drain(pool_request const& what, shard_locks& held);
  void* reuse_drained(pool_request const& what);
  bool draining_may_help(pool_request const& what);

  // pool_wait.cpp: requests that wait. While there is a queue all frees take the locks of all shards, and look at it.
  enum class door : std::uint8_t { open, queue, shut };
  void call_next(called_waiters& calls) noexcept;
  void give_turn(waiter& item, called_waiters& calls) noexcept;
  bool forget(waiter& item, called_waiters& calls) noexcept;
  turn wait_again(waiter& item, turn const& mine, called_waiters& calls) noexcept;
  bool ends(waiter const& item) const noexcept;
  void call_ended(called_waiters& calls) noexcept;
  inline bool is_shut() const noexcept { return door_.load(std::memory_order_relaxed) == door::shut; }
  std::size_t room(std::size_t its_own = 0) const noexcept;
  bool fits(waiter const& item) const noexcept;
  bool is_held() const noexcept;
  bool waits_for_nothing(waiter const& item) const noexcept;
  void shut_door(called_waiters& calls) noexcept;
  void tell_waiting() noexcept;
  bool is_open() const noexcept;
  bool note_completion() noexcept;
  turn new_turn(waiter const& item) noexcept;
  void take_turn(waiter& item) noexcept;
  void end_turn_of(waiter& item) noexcept;
  bool may_stall() const noexcept;
  void look_later() noexcept;
  waiter* next_to_end() noexcept;
  bool end_one_for_others() noexcept; // false: none
  waiter* next_to_watch() noexcept;
  bool watches() noexcept;
  void watch() noexcept;
  std::uint64_t news() const noexcept;
  std::uint64_t news(waiter const& item) const noexcept;
  // pool_stall.cpp: requests that wait in vain.
  sync::time_point stalls_at() noexcept;
  bool has_stalled() noexcept;
  void watch_for_stall() noexcept;

  // Nobody is left whose end would be told.
  inline bool is_unused() const noexcept { return abandoned_ && live_blocks() == 0 && queue_.empty(); }

  // pool_pressure.cpp: asking others to free memory.
  std::size_t wanted() const noexcept;
  inline bool pressure_is_due() const noexcept { return pressure_calls_.due() && wanted() > 0; }
  void call_pressure() noexcept;
  std::size_t begin_pressure(pressure_call& call) noexcept override;
  void end_pressure(pressure_call& call, std::size_t freed) noexcept override;

  // pool_free.cpp: from live to free, and the evidence that is left of it.
  // Of a block that is the caller's, nothing changes behind his back.
  static inline bool may_keep(block const& freed, stream_key const& key, std::optional<std::size_t> bytes) noexcept {
    return freed.is_live() && (!bytes || *bytes == freed.requested) && freed.tags.empty() && !key.is_host() &&
           !key.capturing();
  }
  // Whether a call may be served under the lock of one shard.
  inline bool calm_for(timeline const& order) const noexcept { return calm_ && (several_ || first_stream_ == &order); }
  // The epoch of a use that ends on the stream. A free whose size is not known counts as a large one.
  [[gnu::always_inline]] inline epoch end_use(stream_key const& key, block const* freed,
                                              std::optional<std::size_t> bytes) const noexcept {
    if (!key.order().is_mortal()) [[likely]]
      return key.order().now();
    return key.end_use(freed ? freed->bytes : bytes.value_or(~std::size_t{0} / 2),
                       frees_record_.load(std::memory_order_relaxed));
  }
  // One free on its way.
  struct ending {
    stream_key const& key;
    void* pointer;
    std::optional<std::size_t> bytes;
    tag use;
    inline bool fits(block const& freed) const noexcept { return !bytes || *bytes == freed.requested; }
  };
  free_result free_shared(ending const& what, shard_list::found const& seen) noexcept;
  bool free_near(ending const& what, shard_list::found const& seen) noexcept;
  bool post_free(ending const& what, shard_list::found const& seen) noexcept;
  inline void take_in(pool_shard& in) noexcept {
    if (in.posted.load(std::memory_order_relaxed)) take_in_posted(in);
  }
  void take_in_posted(pool_shard& in) noexcept;
  inline void take_in_all() noexcept {
    for (auto const& each : shards_.all()) take_in(*each);
  }
  free_result free_outright(ending const& what) noexcept;
  free_result end_put_out(block& kept) noexcept;
  block* checked_block(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  block* explain_misuse(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  void end_live(block& freed, ending const& what, pool_shard& in) noexcept;
  tag leave_evidence(ending const& what, std::size_t bytes, pool_shard& in) noexcept;
  bool many_unrecorded(timeline& order, std::size_t bytes, pool_shard& in) noexcept;
  tag record_evidence(ending const& what) noexcept;
  // Whether a block that is freed stays apart, for the next who may have it as it is.
  inline bool stays_apart(block const& freed) const noexcept {
    auto const most_streams = order_.host_accessible() ? 0u : 1u; // the host waits for all of them
    return freed.bytes <= size_class::largest_small && calm_ && freed.tags.size() <= most_streams;
  }
  range_map::joining joining_of(block const& freed) const noexcept;
  void end_block(block& freed) noexcept;
  void end_cached(block& kept) noexcept;
  inline void after_free(block const& range) noexcept {
    if (!calm_) [[unlikely]]
      look_after_free(range);
  }
  void look_after_free(block const& range) noexcept;
  void defer(block& freed, stream_key const& key) noexcept;
  void serve_deferred(stream_key const* now = nullptr) noexcept;

  // pool_uses.cpp: recorded uses.
  void admit_use(tag_set& uses, stream_key const& key, shard_locks& held);

  // pool_caching.cpp: what threads may keep.
  bool sweep() noexcept;
  void sweep_beyond_threshold() noexcept;
  void set_pressure(bool on) noexcept;
  void set_caching() noexcept;
  void note_reserved() noexcept override { set_caching(); }
  inline void note_stream(timeline const& order) noexcept {
    if (!first_stream_) first_stream_ = &order;
    if (!several_ && first_stream_ != &order) begin_sharing();
  }
  void begin_sharing() noexcept;
  // Whether frees leave events for other streams. For moves a request records one itself.
  inline bool leaves_evidence() const noexcept { return several_; }
  // Of a stream's frees, bytes: while there is memory few ask for evidence of them; near the limit all do.
  inline std::size_t most_unrecorded() const noexcept {
    return std::max(supply_.chunks().reserved() / (supply_.chunks().scarce() ? 256 : 2), granule);
  }
  // Giving back begins an eighth beyond the threshold, and ends there.
  inline bool too_much_reserved() const noexcept {
    auto const slack = options_.release_threshold / 8;
    return supply_.chunks().reserved() > slack && supply_.chunks().reserved() - slack > options_.release_threshold;
  }

  // pool_return.cpp: what goes back.
  void expire() noexcept override;
  bool pass(shard_locks& held) noexcept;
  void post_pass() noexcept;
  void post_late_pass(sync::time_point when) noexcept;
  bool may_post(bool soon) noexcept;
  std::vector<timeline*> uncovered() override;

  pool_options const options_;
  pool_order const order_;
  // The pool rounds sizes up to this one. Larger sizes are exact: rounding them wasted .01 to .02 of recorded traces.
  // Where threads have shards it rounds up to 1 MiB, since a thread stops the others for a block that it lacks.
  static constexpr std::size_t usual_numbered = std::size_t{256} << 10;
  std::atomic<std::size_t> largest_numbered_{usual_numbered};
  // Looks may take this share of the time at least: without looks streams share nothing.
  static constexpr double least_look_share = 1.0 / 16;

  pool_supply supply_; // has the upstream of what the shards have, and outlives them
  shard_list shards_{std::max(options_.effort, least_look_share)};
  std::atomic<bool> scarce_{false}; // little is left of the limit: see chunk_list
  // Each free on a stream that may die records an event: memory is wanted back, or near its limit.
  std::atomic<bool> frees_record_{false};
  std::atomic<door> door_{door::open};
  sync::quick_condition arrived_; // what was put out

  // What follows changes only under the locks of all shards.
  pool_ladder const ladder_;
  live_meter live_;
  magazines magazines_;
  timeline const* first_stream_ = nullptr;
  block* deferred_ = nullptr;
  bool several_ = false;  // streams have been served
  bool calm_ = false;     // nothing calls for the locks of all: no pressure, nothing deferred, nothing to give back
  bool pressure_ = false; // since a request failed all rungs before waiting
  bool posted_ = false;
  bool posted_late_ = false; // that pass may be replaced by an earlier one
  bool passing_ = false;
  bool abandoned_ = false;
  unsigned awaiting_ = 0;    // who would fail, and waits for blocks that magazines have put out
  unsigned idle_passes_ = 0; // of the library thread, since the last free that called for one
  waiter_list queue_{options_.most_overtakes};
  std::size_t ceiling_ = SIZE_MAX; // less than what upstream refused to the queue
  holder_list holders_;
  std::size_t giving_way_ = 0; // bytes of holders whose requests were preempted, until their work is rolled back
  pressure_list pressure_calls_;
  std::uint64_t changes_ = 1;        // that may let a request that waits go on
  std::uint64_t given_back_ = 0;     // parts of requests of several
  waiter const* of_parts_ = nullptr; // the request of several parts that tries to allocate them
  bool was_open_ = false;            // work on free memory, when that was looked at last
  unsigned watches_ = 0;             // passes of the library thread, since something was new
  std::uint64_t grants_ = 0;         // while requests wait, and requests that ended so that others can go on
  std::uint64_t vain_ = 0;           // of the news: what requests of several parts have given back
  std::uint64_t signs_ = 0;          // of work that goes on, when they were looked at last
  sync::time_point quiet_since_{};   // no sign was new
};

/// Throws std::invalid_argument for what no pool can have as its limit.
void check_limit(std::size_t limit);

/// Polls, until `longest` has passed, until all that was freed on the streams so far is complete. False if that was not
/// seen by then, or, once the rest is complete, if no event covers all of it. Records events on streams whose handles
/// may be touched. No lock may be held.
export bool wait_for_streams(std::vector<timeline*> const& orders, sync::duration longest) noexcept;

} // namespace detail
} // namespace gpumem
