// The pool: sub-allocates what it draws from an upstream, in stream order.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
export module gpumem:pool_resource;
import :block_info;
import :cuda;
import :cuda_resource;
import :device;
import :error;
import :executor;
import :hardening;
import :holder;
import :misuse;
import :pool_engine;
import :pool_options;
import :pool_upstream;
import :pressure_call;
import :resource;
import :services;
import :shared_state;
import :std;
import :stream;
import :virtual_pages;
import :waiter;

namespace gpumem {

namespace detail {

/// The counted state behind the handles of one pool.
export class pool_state final {
public:
  pool_state(std::unique_ptr<pool_upstream> upstream, pool_options options);
  pool_state(pool_state const&) = delete;
  pool_state& operator=(pool_state const&) = delete;

  // The engine counts live blocks; these are the handles.
  void add_handle() noexcept { handles().fetch_add(1, std::memory_order_relaxed); }
  void drop_handle() noexcept;

  [[gnu::always_inline]] inline expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                                                      std::size_t alignment) noexcept {
    if (plain_handles_.load(std::memory_order_relaxed) == 0) [[unlikely]]
      return allocate_uncommon(key, bytes, alignment);
    return engine_->try_allocate(key, bytes, alignment);
  }
  [[gnu::always_inline]] inline void deallocate(stream_key const& key, void* pointer, std::size_t bytes,
                                                std::size_t) noexcept {
    free(key, pointer, bytes);
  }
  inline void deallocate(stream_key const& key, void* pointer) noexcept { free(key, pointer, std::nullopt); }
  bool admit(waiter& item) noexcept;
  bool cancel_waiter(waiter& item) noexcept;
  void on_holder_event(holder& unit, holder_event what) noexcept;
  void refuse_requests() noexcept;
  void record_use(stream_key const& key, void* pointer);
  inline std::optional<class device> where() noexcept { return engine_->where(); }
  std::size_t trim(std::size_t keep);
  std::size_t reserve(std::size_t bytes);
  void set_limit(std::size_t bytes);
  bool synchronize(std::chrono::nanoseconds longest);
  bool pin(void const* pointer, std::size_t bytes);
  void unpin(void const* pointer, std::size_t bytes);
  expected<int, failure> export_page(void const* pointer);
  statistics read_statistics();
  std::string describe_waiting();
  std::optional<block_info> find(void const* pointer);
  std::vector<block_event> history(void const* pointer);
  inline pool_engine& engine() noexcept { return *engine_; }

private:
  ~pool_state() = default;
  inline std::atomic<std::int64_t>& handles() noexcept { return hardening_ ? hardened_handles_ : plain_handles_; }
  [[gnu::always_inline]] inline void free(stream_key const& key, void* pointer,
                                          std::optional<std::size_t> bytes) noexcept {
    if (hardening_) [[unlikely]]
      return hardening_->deallocate(key, pointer, bytes);
    auto const cached = engine_->try_cache(key, pointer, bytes);
    if (!cached.done()) finish_in_pool(key, pointer, bytes, cached);
  }
  // Apart, so that a free that is kept near its thread saves no registers.
  void finish_in_pool(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                      pool_engine::cached_free const& cached) noexcept;
  expected<void*, failure> allocate_uncommon(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  expected<void*, failure> try_in_turn(waiter& item) noexcept;
  expected<void*, failure> try_part(request_part const& one) noexcept;
  bool is_beyond_device(waiter const& item) noexcept;
  void dispose() noexcept;

  std::atomic<std::int64_t> plain_handles_{0}; // of a hardened pool none: one look tells it from an open one
  pool_engine* const engine_;
  std::unique_ptr<hardening> const hardening_;
  std::atomic<std::int64_t> hardened_handles_{0};
};

template <class Upstream> consteval bool is_stream_ordered_upstream() {
  if constexpr (requires {
                  { Upstream::stream_ordered } -> std::convertible_to<bool>;
                }) {
    return Upstream::stream_ordered;
  } else {
    return true;
  }
}

template <class Upstream> class held_upstream final : public pool_upstream {
public:
  explicit held_upstream(Upstream upstream)
      : pool_upstream{is_stream_ordered_upstream<Upstream>(), mr::has_property<Upstream, mr::host_accessible>,
                      mr::has_property<Upstream, mr::device_accessible>},
        value{std::move(upstream)} {
    attach(services_of(value));
  }
  /// Draws pages of the device instead.
  held_upstream(Upstream instead, gpumem::device where, virtual_pages_options pages)
      : held_upstream{std::move(instead)} {
    use_pages(where, std::move(pages));
  }
  Upstream value;
};

// Pages where the device has virtual memory and the options let them be used; otherwise, chunks.
std::unique_ptr<pool_upstream> held_pages(gpumem::device where, pool_options const& options,
                                          virtual_pages_options pages);

template <class Self, class Upstream, bool = mr::has_property<Upstream, mr::device_accessible>,
          bool = mr::has_property<Upstream, mr::host_accessible>>
struct pool_base {
  using type = resource_base<Self, pool_state>;
};
template <class Self, class Upstream> struct pool_base<Self, Upstream, true, false> {
  using type = resource_base<Self, pool_state, mr::device_accessible>;
};
template <class Self, class Upstream> struct pool_base<Self, Upstream, false, true> {
  using type = resource_base<Self, pool_state, mr::host_accessible>;
};
template <class Self, class Upstream> struct pool_base<Self, Upstream, true, true> {
  using type = resource_base<Self, pool_state, mr::device_accessible, mr::host_accessible>;
};

// The parts of a pool's calls that do not depend on its upstream.
void pool_deallocate(pool_state& state, stream_ref stream, void* pointer) noexcept;
void pool_record_use(pool_state& state, void* pointer, stream_ref stream);

} // namespace detail

/// Keeps a function with a pool, as pool_resource::on_pressure says, and the pool alive. Once it is destroyed the
/// function does not run any more: the destructor waits while it runs elsewhere. Move-only.
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
  template <mr::resource Upstream> friend class pool_resource;
  pressure_callback(detail::pool_state& pool, executor& where, detail::pressure_call::function free_some);
  void swap(pressure_callback& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(call_, other.call_);
  }
  std::optional<state_ptr<detail::pool_state>> pool_;
  std::shared_ptr<detail::pressure_call> call_;
};

/// A pool over virtual pages of a device, or over any resource: best fit to within a thirty-second of the size,
/// coalescing, blocks in multiples of 256 bytes and, up to 256 KiB, of 64 sizes (1 MiB and 80 once threads have
/// shards), any alignment. Of another resource it draws chunks of a sixth of what it has, 2 to 512 MiB, or larger for a
/// larger request. Of pages it maps what a request lacks beside free memory of the same stream, for which each of the
/// first streams has a part of the addresses to itself. Before that it moves free pages there, as far as `effort` lets
/// it. Pages move while no thread has a shard of its own, and not with `reuse_policy::ordered`.
///
/// The pool keeps what is freed. Threads keep some of it near them, for the same stream and size or a little less,
/// until a request would have to grow the pool: of blocks up to 64 KiB a hundredth of what is reserved, 64 MiB at most;
/// of those up to 256 KiB, and of the last eight larger ones up to 1 MiB, up to half of it each, but 4 MiB for each
/// shard at most, or 16 MiB of the former where there are several shards. A request that finds no memory asks the
/// driver what other streams have completed. If that takes more than `effort`, or 1/16, of the time, the pool grows
/// instead, unless the limit forbids it.
///
/// A block goes to another stream only behind its last use: because that stream is already ordered after it (by a
/// gpumem::event), because the host has seen it complete, or, last of all, behind a wait that the pool inserts. Being
/// granted counts as a use: free a block on a stream that is ordered after the one it was granted to.
///
/// A request by `acquire` that finds no memory waits until there is some, in order of priority and then of arrival. A
/// free sets bytes aside for the first request, which then allocates where its executor resumes it, and waits on if the
/// bytes lie in pieces. A later request for less may overtake it, at most `max_overtakes` times. The freeing thread
/// makes no call on the stream of a request. Where only the end of some work is missing the library thread polls for
/// it; with `reuse_policy::completed` a request gets nothing that is still in use. While a request waits threads keep
/// no blocks near them. `allocate` and `try_allocate` do not queue: they overtake all that wait, which counts, or are
/// `exhausted`. A request for more than the limit or the device has is `too_large` at once. A request that cannot be
/// met while no block is live is `exhausted`. Without a limit requests wait when the device is full; what others free
/// of the device does not wake them. A thread that waits for memory which it holds itself waits for ever, unless a
/// `stall_timeout` ends its request.
///
/// Threads that meet at its lock get parts of it of their own (shards), each with chunks or addresses of its own; what
/// one has free the others use before they grow, but not again and again. A shard has sixteen million blocks at most,
/// free ranges among them; a request beyond that fails as one beyond the host's memory does.
///
/// With `hardened` it finds what its callers do wrong, at the price of some driver calls in each call, and reports it
/// to the misuse handler with the history of the memory:
/// - a free of a pointer that is not live, anywhere, by however many threads at once, or of another size; also after
///   the address was granted again, as far as the history reaches;
/// - bytes overwritten before or behind a block: guards lie around each and are looked at before its reuse;
/// - bytes overwritten after the free, of the whole block or, of one larger than `poison`, of half of that at each of
///   its ends: they are filled behind the work of the stream that frees, stay in a quarantine while that holds less
///   than it may, and are looked at then. Fresh memory is filled too, so that reading it shows.
/// What is quarantined is first in, first out; it counts as granted, and goes where a request would else fail.
/// `synchronize` looks at all of it, `trim` at what is complete, and the end of the pool at the rest. Nothing waits for
/// the device but `synchronize`, `trim`, a little, and a request that would else fail. What `allocate_sync` gives is
/// guarded but not filled; memory given to a stream of another device is neither. What is freed by identity, by the
/// host, after `record_use`, in a capture, or on a stream of another device or of which no order after the grant is
/// known, is filled only when the host has seen its use complete. A capture is asked of the driver on each call, also
/// of own streams, and nothing is enqueued into one.
///
/// A shared handle of 8 bytes: copies are the same pool and compare equal. The pool lives until its last handle is gone
/// and its last block is freed; then its chunks go back upstream once the host has seen all use complete. A free
/// makes no driver call, but where another stream wants the memory, and where an event is due on a stream that may die
/// (see `stream`); it allocates no host memory. Any thread.
export template <mr::resource Upstream>
class pool_resource : public detail::pool_base<pool_resource<Upstream>, Upstream>::type {
  using base = detail::pool_base<pool_resource, Upstream>::type;

public:
  /// The memory is valid in the order of the stream it was given to.
  static constexpr bool stream_ordered = true;

  /// Draws `options.initial_size` at once. Throws std::invalid_argument for options that contradict each other, and as
  /// `throw_failure`.
  explicit pool_resource(Upstream upstream, pool_options options = {})
      : state_{new detail::pool_state{std::make_unique<detail::held_upstream<Upstream>>(std::move(upstream)),
                                      std::move(options)}} {}

  /// A pool over virtual pages of a device: one run of addresses, backed page by page, that grows at its end by what is
  /// missing there, and gives back whole pages out of its middle. Chunks of cuda_resource where the device has no
  /// virtual memory, where `options.pages` is false, and where the limit is less than a page of 2 MiB and the pages are
  /// to be nothing special. Throws as the other, and std::invalid_argument for what virtual_pages refuses and for
  /// options of pages where `options.pages` is false.
  explicit pool_resource(gpumem::device where, pool_options options = {}, virtual_pages_options pages = {})
    requires std::same_as<Upstream, cuda_resource>
      : state_{new detail::pool_state{detail::held_pages(where, options, std::move(pages)), std::move(options)}} {}

  using base::deallocate;
  /// The same without the size.
  void deallocate(stream_ref stream, void* pointer) noexcept { detail::pool_deallocate(*state_, stream, pointer); }

  /// Declares that all use of the block on this stream is enqueued: its free need not be ordered after it, reuse will
  /// be. At most three streams' uses are kept apart; a further stream first waits for one of them. Throws cuda_error,
  /// std::bad_alloc, std::invalid_argument.
  void record_use(void* pointer, stream_ref stream) { detail::pool_record_use(*state_, pointer, stream); }

  /// Draws, in one piece, what is missing until so many bytes are reserved, so that requests find them; returns how
  /// many that were. With them come the host's records of a thousand blocks and sixteen streams. What is beyond the
  /// release threshold may go back again. Throws as `throw_failure`, also where that is more than the limit, and
  /// std::bad_alloc. Any thread.
  std::size_t reserve(std::size_t bytes) { return state_->reserve(bytes); }

  /// Another limit than that of the options, bytes; 0: none. Of what is reserved beyond it nothing is taken back, but
  /// nothing more is drawn; `trim` gives back what is free. Requests that wait for more than the limit end with
  /// outcome::too_large. Throws std::invalid_argument. Any thread.
  void set_limit(std::size_t bytes) { state_->set_limit(bytes); }

  /// From now on requests are refused with outcome::closed, and those that wait are answered with it. Frees, `trim` and
  /// statistics go on. Any thread.
  void close() noexcept { state_->refuse_requests(); }

  /// From now on, until the result is destroyed, `free_some(wanted)` is called where requests wait for `wanted` bytes
  /// that there are not: for spilling and for caches that can do with less. It runs on `where`, never in a call of the
  /// pool, one call at a time, and returns how many bytes it has freed. While it frees some and requests wait it is
  /// called again; otherwise, when the next request begins to wait. It may free and allocate, and must not wait for the
  /// pool's memory. An exception counts as nothing freed. Throws std::bad_alloc. Any thread.
  pressure_callback on_pressure(executor& where, std::function<std::size_t(std::size_t wanted)> free_some) {
    return {*state_, where,
            [free_some = std::move(free_some)](std::size_t wanted, auto&) { return free_some(wanted); }};
  }

  /// The same with a function that returns something to await that gives the bytes freed, as a task<std::size_t>. It
  /// begins on `where`, goes on where that resumes it, and counts as one call until that has come. It may wait for
  /// copies, and for memory of another pool: a small one, reserved in advance, that only such functions use. Until it
  /// ends no request that waits is told to give way or ends as stalled. The destructor of the result waits for that
  /// too, and must run neither where the function goes on nor, once it has suspended, in the function itself.
  template <std::invocable<std::size_t> F>
    requires(!std::convertible_to<std::invoke_result_t<F&, std::size_t>, std::size_t>)
  pressure_callback on_pressure(executor& where, F free_some) {
    return {*state_, where,
            [free_some = std::move(free_some)](std::size_t wanted,
                                               detail::pressure_call& call) mutable -> std::optional<std::size_t> {
              detail::await_freed(free_some, wanted, call);
              return std::nullopt;
            }};
  }

  /// Waits on the host, `longest` at most, until all work has completed that keeps free memory from going upstream.
  /// False if that was not seen: the time passed, or no event covers some free on a raw stream. The stream's next call
  /// or its thread's end then records one. Throws std::bad_alloc.
  bool synchronize(std::chrono::nanoseconds longest) { return state_->synchronize(longest); }

  /// Keeps the pages in which the bytes lie from going upstream, until as many calls of `unpin`: for whoever registers
  /// memory with a network, or maps it elsewhere. False, and nothing is pinned, where they are not all the pool's. Over
  /// chunks live memory stays anyhow. Any thread.
  bool pin(void const* pointer, std::size_t bytes) { return state_->pin(pointer, bytes); }
  void unpin(void const* pointer, std::size_t bytes) { state_->unpin(pointer, bytes); }

  /// A file descriptor by which another process can map the page in which the pointer lies, which is pinned from then
  /// on; the caller closes it. Of pools over pages with `exportable`. Throws as `throw_failure`.
  int export_page(void const* pointer) {
    auto const made = state_->export_page(pointer);
    if (!made) throw_failure(made.error());
    return *made;
  }

  /// The block, live or free, in which the pointer lies; nothing if it is not the pool's.
  std::optional<block_info> find(void const* pointer) const { return state_->find(pointer); }

  /// The allocations and frees, as far as a hardened pool remembers them, of blocks in which the pointer lay, the
  /// oldest first. Throws std::bad_alloc. Any thread.
  std::vector<block_event> history(void const* pointer) const { return state_->history(pointer); }

  /// The scopes that hold memory, the largest first, and the requests that wait, in order: a line of text for each. For
  /// people, where a request has ended with outcome::stalled. Throws std::bad_alloc. Any thread.
  std::string describe_waiting() const { return state_->describe_waiting(); }

  Upstream const& upstream() const noexcept {
    return static_cast<detail::held_upstream<Upstream>&>(state_->engine().upstream()).value;
  }
  inline pool_options const& options() const noexcept { return state_->engine().options(); }

  friend bool operator==(pool_resource const& a, pool_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  inline detail::pool_state& state() const noexcept { return *state_; }
  state_ptr<detail::pool_state> state_;
};

/// Over virtual pages, unless the options say otherwise.
export pool_resource(gpumem::device) -> pool_resource<cuda_resource>;
export pool_resource(gpumem::device, pool_options) -> pool_resource<cuda_resource>;
export pool_resource(gpumem::device, pool_options, virtual_pages_options) -> pool_resource<cuda_resource>;

} // namespace gpumem
