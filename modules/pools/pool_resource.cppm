// pool_resource, and the handle and the state that all pools of its family share.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
export module gpumem:pool_resource;
import :block_calls;
import :cuda;
import :cuda_resource;
import :device;
import :error;
import :executor;
import :graph_memory;
import :holder;
import :labels;
import :memory_walk;
import :memory_watcher;
import :misuse;
import :page_store;
import :pool_captures;
import :pool_engine;
import :pool_monitor;
import :pool_options;
import :pool_reports;
import :pool_upstream;
import :pressure_calls;
import :range_search;
import :request_queue;
import :resource;
import :services;
import :shared_state;
import :std;
import :stream;
import :virtual_pages;
import :waiter;

namespace gpumem {

namespace detail {

/// The state that the handles of one pool share. Also counts these handles.
export class pool_state final {
public:
  pool_state(std::unique_ptr<pool_upstream> upstream, pool_options options);
  pool_state(pool_state const&) = delete;
  pool_state& operator=(pool_state const&) = delete;

  // Count the handles. The engine counts the live blocks.
  void add_handle() noexcept { handles().fetch_add(1, std::memory_order_relaxed); }
  void drop_handle() noexcept;

  [[gnu::always_inline]] inline expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                                                      std::size_t alignment) noexcept {
    if (plain_handles_.load(std::memory_order_relaxed) == 0) [[unlikely]]
      return allocate_uncommon(key, bytes, alignment);
    return engine_->try_allocate(key, bytes, alignment);
  }
  /// Allocates for a capturing stream, from graph memory. A capture scope must be open for the stream's capture; it has
  /// the graph memory.
  expected<void*, failure> allocate_in_capture(stream_key const& key, std::size_t bytes,
                                               std::size_t alignment) noexcept;
  [[gnu::always_inline]] inline void deallocate(stream_key const& key, void* pointer, std::size_t bytes,
                                                std::size_t) noexcept {
    free(key, pointer, bytes);
  }
  inline void deallocate(stream_key const& key, void* pointer) noexcept { free(key, pointer, std::nullopt); }
  bool admit(waiter& item) noexcept;
  /// Does the same for a request of a borrower of pages. `attempt()` asks the engine.
  template <class Attempt> bool admit_with(waiter& item, Attempt attempt) noexcept {
    if (refuses_beyond_device(item)) return false;
    auto turn = engine_->requests().begin_turn(item);
    while (turn.what == request_queue::waiting::turn) {
      auto const checked = may_try(item);
      turn = engine_->requests().end_turn(item, turn, checked ? attempt() : checked);
    }
    if (turn.what == request_queue::waiting::last) dispose();
    return turn.what == request_queue::waiting::parked;
  }
  /// Frees blocks that a hardened pool keeps; see block_calls.
  bool free_kept(stream_key const& key) noexcept { return calls_.free_kept(key); }
  bool cancel_waiter(waiter& item) noexcept;
  bool is_too_large(waiter& item) noexcept;
  void on_holder_event(holder& unit, holder_event event) noexcept;
  void refuse_requests() noexcept;
  void record_use(stream_key const& key, void* pointer);
  inline std::optional<class device> where() noexcept { return engine_->where(); }
  inline bool serves_stream(stream_key const& key) noexcept { return engine_->serves(key); }
  std::size_t trim(std::size_t keep);
  bool watch_memory(memory_watcher& watcher, bool begin);
  expected<std::size_t, failure> reserve(std::size_t bytes);
  void set_limit(std::size_t bytes);
  bool add_outside(std::size_t bytes);
  void remove_outside(std::size_t bytes);
  bool synchronize(std::chrono::nanoseconds longest);
  bool pin(void const* pointer, std::size_t bytes);
  void unpin(void const* pointer, std::size_t bytes);
  void open_to(class device peer);
  expected<exported_page, failure> export_page(void const* pointer);
  statistics read_statistics();
  monitored_numbers read_numbers();
  std::string describe_waiting();
  std::string describe_memory();
  void reset_peaks();
  /// Returns the live block that starts at the address, for a caller that owns it; nullopt if there is none.
  std::optional<owned_block> find_owned(void const* pointer);
  std::optional<std::size_t> try_deallocate(void* pointer) noexcept;
  std::optional<block_info> find(void const* pointer);
  std::vector<block_event> history(void const* pointer);
  live_blocks find_live();
  std::vector<memory_range> memory_map();
  bool set_label(void const* pointer, std::uint32_t label) noexcept;
  memory_copy copy_memory();
  void append_holders(std::size_t bytes, std::string& text);
  inline char const* resource_name() noexcept { return engine_->options().name.c_str(); }
  inline pool_engine& engine() noexcept { return *engine_; }
  inline pool_captures& captures() noexcept { return captures_; }

private:
  ~pool_state() = default;
  inline std::atomic<std::int64_t>& handles() noexcept { return special_ ? special_handles_ : plain_handles_; }
  [[gnu::always_inline]] inline void free(stream_key const& key, void* pointer,
                                          std::optional<std::size_t> bytes) noexcept {
    if (special_) [[unlikely]]
      return free_special(key, pointer, bytes);
    auto const cached = engine_->try_cache(key, engine_->find_in_own_shard(pointer), bytes);
    if (!cached.done()) free_slow(key, pointer, bytes, cached);
  }
  // Not inlined, so that a free into the thread cache, the common case, need not save registers for this call.
  void free_slow(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                 cached_free const& cached) noexcept;
  expected<void*, failure> allocate_uncommon(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  expected<void*, failure> may_try(waiter& item) noexcept;
  bool refuses_beyond_device(waiter& item) noexcept;
  expected<void*, failure> try_part(request_part const& part) noexcept;
  expected<void*, failure> allocate_special(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  void free_special(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept;
  bool exceeds_largest_block(std::size_t bytes) const noexcept;
  bool has_block_beyond_largest(waiter const& item) const noexcept;
  bool is_beyond_device(waiter const& item) noexcept;
  static void end(void* state) noexcept;
  void dispose() noexcept;

  std::atomic<std::int64_t> plain_handles_{0}; // 0 if the pool is special or has no handle, so that one test finds both
  bool const special_;                         // the pool is hardened, or passes requests to its upstream
  pool_engine* const engine_;
  block_calls plain_calls_;
  std::unique_ptr<block_calls> const special_calls_; // null in a plain pool, which so needs no host memory for them
  block_calls& calls_;
  std::atomic<std::int64_t> special_handles_{0};
  pool_captures captures_;
  std::unique_ptr<leak_report> leaks_;        // null unless leaks are reported; destroyed before the engine
  std::unique_ptr<monitored_pool> monitored_; // null unless statistics are published; destroyed before the engine
};

// The parts of a pool's calls that do not depend on the type of its upstream.
void pool_deallocate(pool_state& state, stream_ref stream, void* pointer) noexcept;
void pool_record_use(pool_state& state, void* pointer, stream_ref stream);

export template <class Self, class Upstream> class pool_base;

} // namespace detail

/// A time in which a pool serves the streams of a capture from graph memory, which stays valid for all launches of the
/// graph. Made by pool_resource::capture. The destructor ends that time. Move-only.
export class [[nodiscard]] capture_scope {
public:
  capture_scope(capture_scope&& other) noexcept = default;
  capture_scope& operator=(capture_scope&& other) noexcept = default;

private:
  template <class, class> friend class detail::pool_base;
  explicit capture_scope(std::unique_ptr<detail::open_capture> open) noexcept : open_{std::move(open)} {}
  std::unique_ptr<detail::open_capture> open_;
};

/// Keeps a pressure callback registered (see pool_resource::on_pressure), and its pool alive. The destructor ends the
/// registration: the function does not run afterwards, and the destructor waits while another thread runs it.
/// Move-only.
export class [[nodiscard]] pressure_callback {
public:
  pressure_callback() noexcept = default;
  pressure_callback(pressure_callback&& other) noexcept = default;
  pressure_callback& operator=(pressure_callback&& other) noexcept {
    pressure_callback{std::move(other)}.swap(*this);
    return *this;
  }
  ~pressure_callback();

private:
  template <class, class> friend class detail::pool_base;
  pressure_callback(detail::pool_state& pool, executor& executor, detail::pressure_call::function free_some);
  void swap(pressure_callback& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(call_, other.call_);
  }
  std::optional<state_ptr<detail::pool_state>> pool_;
  std::shared_ptr<detail::pressure_call> call_;
};

namespace detail {

/// Base of the handles of pools. A handle has 8 bytes, and shares a pool_state with the other handles of its pool. Any
/// thread.
template <class Self, class Upstream> class pool_base : public forwarding_base<Self, pool_state, Upstream> {
  using base = forwarding_base<Self, pool_state, Upstream>;

public:
  /// An allocated block is valid in the order of its stream.
  static constexpr bool stream_ordered = true;

  using base::deallocate;
  /// Frees a block whose size the caller does not know.
  void deallocate(stream_ref stream, void* pointer) noexcept {
    if (!has_state()) return report_moved_from(pointer, 0);
    pool_deallocate(state(), stream, pointer);
  }

  /// Frees a block in the order of the stream for which it was allocated; that stream must still live. Returns the
  /// requested bytes. Does nothing, and returns nullopt, if the address is not the start of a live block of the pool.
  /// For callers that know only the address. Any thread.
  std::optional<std::size_t> try_deallocate(void* pointer) noexcept {
    return has_state() ? state().try_deallocate(pointer) : std::nullopt;
  }

  /// Returns the requested bytes of the live block that starts at the address; nullopt if there is none. Takes no lock
  /// unless the pool is hardened, so only the block's owner may rely on the result. Any thread.
  std::optional<std::size_t> bytes_of(void const* pointer) const noexcept {
    auto const found = find_owned(pointer);
    return found ? std::optional{found->bytes} : std::nullopt;
  }
  // For the C library: returns the requested bytes and the stream of the live block at the address.
  std::optional<owned_block> find_owned(void const* pointer) const noexcept {
    return has_state() && pointer ? state().find_owned(pointer) : std::nullopt;
  }

  // For the C library: counts bytes of another source toward the limit. add_outside() gives unused memory back to make
  // room for them, and returns false if the limit would be exceeded.
  bool add_outside(std::size_t bytes) { return state_->add_outside(bytes); }
  // Takes bytes back that add_outside() has counted.
  void remove_outside(std::size_t bytes) { state_->remove_outside(bytes); }

  /// Declares that all uses of the block on this stream are enqueued. The block's free need not be ordered after them;
  /// the pool orders reuse after them. A block has room for the uses of three streams. A fourth stream first waits for
  /// the work of one of the three. Throws cuda_error, std::bad_alloc, std::invalid_argument.
  void record_use(void* pointer, stream_ref stream) { pool_record_use(*state_, pointer, stream); }

  /// Opens a capture scope: until the result is destroyed, requests to this pool on certain capturing streams get graph
  /// memory, which stays valid for all launches of the graph. These streams are `stream` and the streams that joined
  /// its capture through events. The scope may be opened before or after the capture begins, however it is begun, and
  /// also serves later captures of `stream`. The scope holds for all copies of the pool, and for adaptors over them.
  /// Requests on the streams of other captures fail with outcome::capture_unsupported. No request waits in the scope.
  /// Memory that was freed on `stream` before the scope was opened, such as that of a first run, serves the capture
  /// once all uses are complete. So open the scope after that run, then synchronize the stream, then begin the capture.
  ///
  /// `memory` is a graph_resource over this very pool. Its blocks may be freed by the pool or by `memory`, on any
  /// stream, also after the scope. `find` and `record_use` of the pool accept these blocks too. If another block of the
  /// pool is freed on a capturing stream, a later call outside the capture completes the free. While any scope is open
  /// in the process, each allocation and free on any stream asks the driver whether the stream captures.
  ///
  /// The stream must live until the scope is closed. If it is `cudaStreamPerThread`, the scope serves its thread only.
  /// Several scopes may be open on different streams, one per stream and pool. If two streams of one capture have
  /// scopes, each of the two is served by its own scope, and the capture's other streams by the older one. Throws
  /// std::invalid_argument for a second scope of the stream, and for a graph memory of another upstream. Throws it also
  /// for the legacy stream, and for handle 0 unless that means the per-thread stream. Throws cuda_error,
  /// std::bad_alloc. Any thread.
  template <class Memory>
    requires std::same_as<typename Memory::state_type, graph_memory>
  capture_scope capture(Memory& memory, stream_ref stream) {
    if (!memory.valid()) throw_moved_from("capture");
    auto& pool = *state_;
    auto& serving = *static_cast<graph_memory*>(memory.services().state);
    return capture_scope{std::make_unique<open_capture>(pool.captures(), &pool, serving, stream, pool.where())};
  }

  /// Reserves the bytes that the pool lacks to have `bytes` in all, in one piece. Returns the number of bytes that it
  /// lacked. Also allocates the host's records for a thousand blocks and sixteen streams. Memory beyond the release
  /// threshold may go back to the upstream again. Throws what `throw_failure` throws, also if `bytes` is more than the
  /// limit, and std::bad_alloc. Any thread.
  std::size_t reserve(std::size_t bytes) {
    auto const lacked = state_->reserve(bytes);
    if (!lacked) detail::throw_failure_of(this->services(), nullptr, lacked.error());
    return *lacked;
  }

  /// Changes the limit of the options, in bytes; 0: no limit. The pool keeps memory that it has reserved beyond the new
  /// limit, but reserves no more; `trim` gives free memory back. Requests that wait for more than the limit end with
  /// outcome::too_large. Throws std::invalid_argument. Any thread.
  void set_limit(std::size_t bytes) { state_->set_limit(bytes); }

  /// Makes `peak_live` and `peak_reserved` of the statistics count from now on. Any thread.
  void reset_peaks() { state_->reset_peaks(); }

  /// Ends all waiting and later requests with outcome::closed. Frees, `trim` and statistics still work. Any thread.
  void close() { state_->refuse_requests(); }

  /// Registers a pressure callback until the result is destroyed: for spilling, and for caches that can shrink. The
  /// pool calls `free_some(bytes)` if requests wait and lack `bytes` bytes. The function runs on `executor`, never
  /// inside a call of the pool, one call at a time, and returns the bytes that it has freed. If it freed any and
  /// requests still wait, the pool calls it again. Otherwise the pool calls it when the next request begins to wait.
  /// The function may allocate and free, but must not wait for memory of the pool. An exception counts as 0 bytes.
  ///
  /// Memory that it frees elsewhere, for example in another pool, counts if the upstream has refused waiting requests:
  /// these then ask the upstream once more. The pool does not call the function again for such memory, so free all
  /// `bytes` bytes in one call. Throws std::bad_alloc. Any thread.
  pressure_callback on_pressure(executor& executor, std::function<std::size_t(std::size_t bytes)> free_some) {
    return {*state_, executor,
            [free_some = std::move(free_some)](std::size_t bytes, auto&) { return free_some(bytes); }};
  }

  /// Registers a function that returns an awaitable of the bytes freed, such as task<std::size_t>. The function starts
  /// on `executor`; the awaitable decides which thread resumes the function. The call lasts until the number of bytes
  /// is known. The function may wait for copies, and for memory of another pool: a small one, reserved in advance, that
  /// only such functions use. Until the call ends, no waiting request is preempted or ends as stalled. The destructor
  /// of the result waits for the end of the call. So it must not run on the thread that resumes the function, and not
  /// in the function itself after its first suspension.
  template <std::invocable<std::size_t> F>
    requires(!std::convertible_to<std::invoke_result_t<F&, std::size_t>, std::size_t>)
  pressure_callback on_pressure(executor& executor, F free_some) {
    return {*state_, executor,
            [free_some = std::move(free_some)](std::size_t bytes,
                                               pressure_call& call) mutable -> std::optional<std::size_t> {
              await_freed(free_some, bytes, call);
              return std::nullopt;
            }};
  }

  /// Blocks the calling thread, `longest` at most (a negative time: not at all), until all work on streams that may
  /// still use free memory of the pool is complete. Returns false if the time has passed. Returns false also if no
  /// event was recorded after a free on a stream that gpumem neither made nor adopted. The next call on that stream, or
  /// the end of its thread, then records such an event. Throws std::bad_alloc.
  bool synchronize(std::chrono::nanoseconds longest) { return state_->synchronize(longest); }

  /// Keeps the pages of these bytes mapped where they are, for programs that register memory with a network device or
  /// map it at other addresses. Each pin() needs its own unpin(). Returns false, and pins nothing, if a part of the
  /// bytes is not the pool's. In a pool over chunks, which maps no pages, live memory always stays where it is. Any
  /// thread.
  bool pin(void const* pointer, std::size_t bytes) { return state_->pin(pointer, bytes); }
  /// Takes back one pin() of these bytes. Any thread.
  void unpin(void const* pointer, std::size_t bytes) { state_->unpin(pointer, bytes); }

  /// Lets another device read and write all memory that the pool has now or gets later. Does nothing in a pool over
  /// chunks: access to chunks depends on cuCtxEnablePeerAccess. A pool over pages refuses streams of devices to which
  /// it is not open: requests fail with outcome::invalid_argument, and a free is a misuse. In a pool over pages, throws
  /// cuda_error if `peer` cannot reach the memory or chunks stand in for pages, and std::bad_alloc. Any thread.
  void open_to(device peer) { state_->open_to(peer); }

  /// Returns the page that holds the address, with a file descriptor by which another process can map it. The caller
  /// closes the descriptor. Pins the page until unpin() of its bytes. The pool must be over pages, with
  /// virtual_pages_options::exportable. Throws what `throw_failure` throws.
  [[nodiscard]] exported_page export_page(void const* pointer) {
    auto const made = state_->export_page(pointer);
    if (!made) throw_failure_in(state_->resource_name(), made.error());
    return *made;
  }

  /// Returns the block, live or free, that holds the address; nullopt if it is not the pool's.
  std::optional<block_info> find(void const* pointer) const { return state_->find(pointer); }
  /// Returns all reserved memory, as ranges in the order of their addresses. The ranges fill each region without gaps.
  /// A region is a chunk, or mapped pages with no unmapped pages in between. In a hardened pool the range of a live
  /// block includes its guards. Copies at most 1,000 ranges at one moment; other threads may use the pool between such
  /// moments. Takes time in proportion to the number of blocks. Throws std::bad_alloc. Any thread.
  std::vector<memory_range> memory_map() const { return state_->memory_map(); }

  // For the module gpumem.snapshot.
  detail::memory_copy copy_memory() const { return state_->copy_memory(); }

  /// Names a live block in snapshots and reports until it is freed; an empty text takes the name away. The caller owns
  /// the block. Returns false, and does nothing, if no live block begins at the address. The process keeps each
  /// different text, up to 65,535 of them, so use few. Throws std::bad_alloc. Any thread.
  bool set_label(void const* pointer, std::string_view label) {
    return pointer && state_->set_label(pointer, label_number(label));
  }

  /// Returns the allocations and frees of blocks that held the address, the oldest first, as far as a hardened pool
  /// remembers them; nothing for other pools. Throws std::bad_alloc. Any thread.
  std::vector<block_event> history(void const* pointer) const { return state_->history(pointer); }

  /// Returns a text with one line for each `scope` (a unit of work, not a capture_scope) that holds memory, the largest
  /// first. Then comes one line for each waiting request, in the order of the queue. Requests of scopes that wait in
  /// front of the pool, such as at a limiting_adaptor, come last. The text is meant for people, after a request has
  /// ended with outcome::stalled. Throws std::bad_alloc. Any thread.
  std::string describe_waiting() const { return state_->describe_waiting(); }

  /// Returns a text that tells which streams hold the memory. The sums of the pool come first, then a line for each
  /// stream and power of two of block sizes, and the free ranges. The text is meant for people, after a request has
  /// failed; see also pool_options::failure_report. Takes time in proportion to the number of blocks. Throws
  /// std::bad_alloc. Any thread.
  std::string describe_memory() const { return state_->describe_memory(); }

  /// Returns the upstream. A copy of the result is another handle to it.
  Upstream const& upstream() const { return static_cast<held_upstream<Upstream>&>(state_->engine().upstream()).value; }
  // Returns what holds for the memory: the upstream says which processors can access it.
  static memory_traits traits_of(pool_state& state) noexcept { return state.engine().upstream().traits_of_pool(); }
  /// Returns the options of the constructor.
  inline pool_options const& options() const { return state_->engine().options(); }

  /// Copies are the same pool and compare equal.
  friend bool operator==(Self const& a, Self const& b) noexcept {
    pool_base const &left = a, &right = b;
    return left.state_ == right.state_;
  }

protected:
  /// Throws what the constructors of pool_resource throw.
  pool_base(std::unique_ptr<pool_upstream> upstream, pool_options options)
      : state_{new pool_state{std::move(upstream), std::move(options)}} {}

private:
  friend base;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  inline pool_state& state() const noexcept { return *state_.get(); }
  state_ptr<pool_state> state_;
};

} // namespace detail

/// A pool over any resource, or over virtual pages of a device: keeps freed blocks for later requests. Any thread.
///
/// Stream order: free a block on a stream that is ordered after its allocation. Other streams get the memory only after
/// its free and the uses that `record_use` declares. The pool relies on the order that events give, on completed
/// events, or on a wait that it inserts (see reuse_policy).
///
/// Errors: a request that no state of the pool can serve is `too_large`; one that finds no memory is `exhausted`. A
/// request by `acquire` that finds no memory waits instead, in order of priority and then of arrival. Such a request is
/// `exhausted` only if no live block is left. Without a limit, it is `too_large` if it exceeds the device's memory.
/// Memory that is freed outside the pool does not wake waiting requests. A thread that waits for memory that it holds
/// itself waits for ever, unless there is a `stall_timeout`. A `hardened` pool also reports double frees, frees of a
/// wrong size and overwritten bytes to the misuse handler.
///
/// Ownership: an object is a handle of 8 bytes; copies are the same pool and compare equal. The pool lives until its
/// last handle is gone and its last block is freed. Its memory goes back to the upstream when the host has seen all
/// uses complete.
export template <class Upstream> class pool_resource : public detail::pool_base<pool_resource<Upstream>, Upstream> {
  using base = detail::pool_base<pool_resource, Upstream>;

public:
  /// Reserves `options.initial_size` now. Throws std::invalid_argument for options that contradict each other, and what
  /// `throw_failure` throws if the upstream has no memory.
  explicit pool_resource(Upstream upstream, pool_options options = {})
      : base{std::make_unique<detail::held_upstream<Upstream>>(std::move(upstream)), std::move(options)} {}

  /// Makes a pool over virtual pages of a device: addresses to which the pool maps pages as it grows, and from which it
  /// unmaps any free pages. The pool uses chunks of cuda_resource instead if the device has no virtual memory, if
  /// `options.pages` is false, or if `options.chunk_size` is set. It also uses chunks if the limit is less than a page
  /// of 2 MiB and `pages` has its defaults. Throws what the other constructor throws. Throws std::invalid_argument for
  /// `pages` that virtual_pages refuses, and for `pages` other than the defaults if `options` ask for chunks.
  explicit pool_resource(gpumem::device device, pool_options options = {}, virtual_pages_options pages = {})
    requires std::same_as<Upstream, cuda_resource>
      : base{detail::held_pages(device, options, std::move(pages)), std::move(options)} {}
};

/// A pool that is made for a device uses virtual pages, unless the options say otherwise.
export pool_resource(gpumem::device) -> pool_resource<cuda_resource>;
export pool_resource(gpumem::device, pool_options) -> pool_resource<cuda_resource>;
export pool_resource(gpumem::device, pool_options, virtual_pages_options) -> pool_resource<cuda_resource>;

} // namespace gpumem
