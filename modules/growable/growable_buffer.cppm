// The module gpumem.growable: memory that grows in place, and gives parts of itself back.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <algorithm>
#include <atomic>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
export module gpumem.growable;
import gpumem;

export namespace gpumem {

class growable_buffer;

/// Options of a growable_buffer; sizes in bytes.
struct growable_options {
  std::size_t reserve = 0; ///< addresses to reserve: the most that the buffer can ever have; they cost no memory
  std::size_t initial = 0; ///< the size at first
  bool discarded = false;  ///< the initial size is discarded at first: restore() maps what is needed
  /// The size of the pages, a multiple of granularity(); 0: as the growth allows, up to 512 MiB. A page goes back once
  /// all of it is discarded, so choose the unit of discards. Each page costs the same time, whatever its size. Pages of
  /// more than 32 MiB go back to the device; the pool gives smaller ones to its other users.
  std::size_t page = 0;
  std::string name = "growable"; ///< names the memory in snapshots and reports, and the buffer in texts of errors
};

} // namespace gpumem

namespace gpumem::detail {

export class growable_state;

/// A request of a buffer for pages: to grow, or to restore discarded pages. It is the resource_state of which the
/// library's requests ask for memory, so that it waits as these do. The buffer keeps what is granted.
export class growth_request final : public lack {
public:
  /// The rule that the request breaks; `none`: it breaks none.
  enum class fault : std::uint8_t { none, beyond, unaligned, outside, mapped };

  /// `grow` also maps some pages in advance.
  enum class aim : std::uint8_t { grow, grow_exactly, restore };

  /// `wanted`: of a growth, from the beginning on.
  growth_request(growable_state& buffer, extend::page_extent wanted, aim aim) noexcept
      : buffer_{buffer}, wanted_{wanted}, aim_{aim} {}

  expected<void*, failure> try_allocate(extend::stream_key const& key, std::size_t, std::size_t) noexcept;
  void deallocate(extend::stream_key const&, void*, std::size_t, std::size_t) noexcept {}
  std::optional<device> where() noexcept;
  bool admit(extend::waiter& item) noexcept;
  bool cancel_waiter(extend::waiter& item) noexcept;
  statistics read_statistics();
  char const* resource_name() noexcept;

  /// Returns the bytes of pages that the request lacks.
  std::size_t bytes() const noexcept override;
  /// Returns the same, but at least one.
  inline std::size_t lacking() const noexcept { return std::max<std::size_t>(bytes(), 1); }
  /// Throws the exception that names the numbers, if the request was wrong.
  void throw_if_wrong() const;

private:
  friend class growable_state;

  growable_state& buffer_;
  extend::page_extent wanted_;
  aim aim_;
  fault fault_ = fault::none;
};

/// A growth_request as a resource, by whose functions it is made.
export class growth_resource : public extend::resource_base<growth_resource, growth_request> {
public:
  explicit growth_resource(growth_request& request) noexcept : request_{&request} {}
  growth_request& state() const noexcept { return *request_; }
  friend bool operator==(growth_resource const& a, growth_resource const& b) noexcept {
    return a.request_ == b.request_;
  }

private:
  growth_request* request_;
};

/// The pages of one growable_buffer. Any thread. The mutex is not held while pages are freed, since a free can resume a
/// coroutine that calls the buffer.
export class growable_state {
public:
  using loan_map = std::map<std::size_t, std::size_t>; // the bytes of loans, by offset

  growable_state(page_lender lender, growable_options const& options);
  growable_state(growable_state const&) = delete;
  growable_state& operator=(growable_state const&) = delete;
  ~growable_state();

  inline void* base() const noexcept { return lender_.base(); }
  inline std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  inline std::size_t end() const noexcept { return end_.load(std::memory_order_relaxed); }
  inline std::size_t mapped() const noexcept { return mapped_.load(std::memory_order_relaxed); }
  inline std::size_t reserved() const noexcept { return lender_.address_space(); }
  inline std::size_t granularity() const noexcept { return lender_.state().granularity(); }
  inline lending_state& lender() const noexcept { return lender_.state(); }
  inline std::string const& name() const noexcept { return name_; }
  inline stream_ref stream() const noexcept { return stream_ref{stream_.load(std::memory_order_relaxed)}; }

  // Returns the end of the pages for a buffer of this size, without an advance.
  inline std::size_t pages_end(std::size_t bytes) const noexcept {
    return std::min((bytes + unit_ - 1) / unit_ * unit_, reserved());
  }
  expected<void*, failure> serve(growth_request& asked, extend::stream_key const& key) noexcept;
  expected<void, failure> try_now(stream_ref stream, extend::page_extent wanted, growth_request::aim aim) noexcept;
  void grow(stream_ref stream, std::size_t bytes, growth_request::aim aim);
  void begin_discarded(stream_ref stream, std::size_t bytes);
  void shrink_to(stream_ref stream, std::size_t bytes) {
    auto const key = identify(stream);
    free(key, cut(key, bytes));
  }
  // Makes the size `bytes`, and returns the loans beyond it. The caller passes them to free() once it holds no lock.
  loan_map cut(extend::stream_key const& key, std::size_t bytes);
  void free(extend::stream_key const& key, loan_map const& loans) noexcept;
  void discard(stream_ref stream, extend::page_extent extent);
  // Counts the stream as the one that was used last.
  void record_stream(extend::stream_key const& key) noexcept {
    sync::lock const held{mutex_};
    use(key);
  }
  // Returns the key of a stream that may use the pages. Throws acquire_error if the stream captures, unless
  // `may_capture`.
  extend::stream_key identify(stream_ref stream, bool may_capture = false) const;
  [[noreturn]] void throw_wrong(growth_request const& asked) const;

private:
  inline std::size_t round_up(std::size_t bytes) const noexcept {
    return (bytes + granularity() - 1) / granularity() * granularity();
  }
  std::size_t growth_end(std::size_t bytes) const noexcept;
  growth_request::fault fault_of(growth_request const& asked) const noexcept GPUMEM_REQUIRES(mutex_);
  expected<void*, failure> lend(extend::stream_key const& key, extend::page_extent extent) noexcept
      GPUMEM_REQUIRES(mutex_);
  std::size_t lent_until(extend::page_extent extent) const noexcept GPUMEM_REQUIRES(mutex_);
  bool overlaps(extend::page_extent extent) const noexcept GPUMEM_REQUIRES(mutex_);
  void divide_at(std::size_t offset) GPUMEM_REQUIRES(mutex_);
  loan_map take(extend::page_extent extent) GPUMEM_REQUIRES(mutex_);
  void use(extend::stream_key const& key) noexcept GPUMEM_REQUIRES(mutex_);

  page_lender lender_;
  std::size_t const page_;
  std::size_t const unit_; // the end of the pages is a multiple of it
  std::string const name_;
  label_use const label_;
  std::atomic<std::size_t> bytes_{0};
  std::atomic<std::size_t> end_{0};    // up to here pages were lent; some of them may be discarded
  std::atomic<std::size_t> mapped_{0}; // the bytes of all loans
  sync::mutex mutable mutex_;
  loan_map loans_ GPUMEM_GUARDED_BY(mutex_);
  extend::stream_timeline* timeline_ GPUMEM_GUARDED_BY(mutex_) = nullptr; // of the stream that was used last
  std::atomic<CUstream> stream_{nullptr};
};

/// Gives the state of a buffer to the modules that build on it.
export struct growable_access {
  static growable_state& state_of(growable_buffer const& buffer);
};

inline std::optional<device> growth_request::where() noexcept { return buffer_.lender().where(); }
inline bool growth_request::cancel_waiter(extend::waiter& item) noexcept {
  return buffer_.lender().cancel_waiter(item);
}
inline char const* growth_request::resource_name() noexcept { return buffer_.name().c_str(); }
inline void growth_request::throw_if_wrong() const {
  if (fault_ != fault::none) [[unlikely]]
    buffer_.throw_wrong(*this);
}

} // namespace gpumem::detail

export namespace gpumem {

namespace extend {

/// The awaiter of one `co_await` of a growth_awaitable; immovable. The destructor withdraws a request that still waits;
/// see acquire_operation.
template <stoppable_token Token> class growth_operation {
public:
  growth_operation(growth_operation const&) = delete;
  growth_operation& operator=(growth_operation const&) = delete;

  /// Grows immediately, if there is memory; see acquire_operation.
  bool await_ready() noexcept { return waiting_.await_ready(); }
  /// Makes the request wait in the pool; see acquire_operation.
  template <class Promise> auto await_suspend(std::coroutine_handle<Promise> continuation) {
    return waiting_.await_suspend(continuation);
  }
  /// Throws as growth_awaitable says.
  void await_resume() {
    request_.throw_if_wrong();
    static_cast<void>(waiting_.await_resume());
  }

private:
  template <stoppable_token> friend class growth_awaitable;
  growth_operation(detail::growth_request const& request, stream_ref stream, acquire_options const& options,
                   Token token) noexcept
      : request_{request}, waiting_{detail::growth_resource{request_}
                                        .acquire(stream, request_.lacking(), options, std::move(token))
                                        .operator co_await()} {}

  detail::growth_request request_;
  acquire_operation<Token> waiting_;
};

/// A growth, or a restoration of discarded pages, that has not begun. `co_await` it, or call one of its functions. It
/// completes when the memory is valid in the stream's order, and never waits for the GPU. If the pool lacks memory, the
/// request waits in the pool's line as an acquire_awaitable does, which has the rules. The buffer has grown when the
/// request is granted, even if the coroutine is destroyed before it resumes.
///
/// Throws what `co_await` of an acquire_awaitable throws. A growth beyond the reserved addresses throws out_of_memory
/// with outcome::too_large, and wrong offsets throw std::invalid_argument; the texts name the numbers. The buffer is
/// then as it was. The buffer and the stream must live until the request has ended.
template <stoppable_token Token = never_stop_token> class [[nodiscard]] growth_awaitable {
public:
  /// Begins the request.
  growth_operation<Token> operator co_await() const noexcept { return {request_, stream_, options_, token_}; }

  /// Grows now, or returns the failure. While other requests wait, the failure is outcome::exhausted. Does not wait.
  expected<void, failure> try_now() const noexcept {
    return answered([](auto const& made) { return made.try_now(); });
  }
  /// Waits on the calling thread, at most until the deadline. Throws like `co_await`; ignores the stop token. Must not
  /// be called on the library thread.
  void wait() const {
    auto request = request_;
    auto made = detail::growth_resource{request}.acquire(stream_, request.lacking(), options_);
    try {
      static_cast<void>(made.wait());
    } catch (...) {
      request.throw_if_wrong();
      throw;
    }
  }
  /// Waits on the calling thread, at most until `deadline` or the request's deadline, whichever is earlier. Returns the
  /// failure, if there is one. Ignores the stop token. Must not be called on the library thread.
  expected<void, failure> wait_until(detail::sync::time_point deadline) const noexcept {
    return answered([deadline](auto const& made) { return made.wait_until(deadline); });
  }

private:
  friend class gpumem::growable_buffer;
  growth_awaitable(detail::growth_request const& request, stream_ref stream, acquire_options const& options,
                   Token token) noexcept
      : request_{request}, stream_{stream}, options_{options}, token_{std::move(token)} {}

  template <class Answer> expected<void, failure> answered(Answer answer) const noexcept {
    auto request = request_;
    auto const result = answer(detail::growth_resource{request}.acquire(stream_, request.lacking(), options_));
    if (!result) return unexpected<failure>{result.error()};
    return {};
  }

  detail::growth_request request_;
  stream_ref stream_;
  acquire_options options_;
  Token token_;
};

} // namespace extend

/// Memory of a pool that grows at an address that never changes, while kernels use it and in graphs that were captured
/// before. It reserves addresses for the most that it can ever have, and borrows pages of the pool, which count in the
/// pool's limit and statistics. Pages that are not mapped fault when they are used.
///
/// Stream order: new pages are valid in the order of the stream that is passed. Pages that are given back leave once
/// the work enqueued on that stream is complete, and all work on other streams must be ordered before. If memory is
/// asked for again at the same addresses before, the pages stay: the stream that asks comes after the one that gave
/// them back. A growth inside mapped pages orders no stream: the caller orders a stream after that of the last call.
/// No call waits on the host for a stream. Growth, shrinking and discards on a stream that captures a graph
/// fail with outcome::capture_unsupported.
///
/// Ownership: move-only. The destructor frees the memory in the order of the stream that was used last, which must live
/// until then. The buffer keeps the pool's memory alive. Any thread; no call may run during a move or the destructor.
class growable_buffer {
public:
  /// Makes an empty buffer, which has no pool. Its functions throw std::invalid_argument, as after a move from it.
  growable_buffer() noexcept = default;
  /// Reserves addresses, and grows to `options.initial` without a wait. `pool`: over pages. Throws
  /// std::invalid_argument for wrong options and a pool without pages, cuda_error, std::bad_alloc, and what resize()
  /// throws.
  template <class Pool>
    requires std::same_as<typename Pool::state_type, detail::pool_state>
  growable_buffer(Pool const& pool, stream_ref stream, growable_options const& options)
      : growable_buffer{[&] {
                          check(pool.valid(), options);
                          return detail::page_lender{pool, options.reserve};
                        }(),
                        stream, options} {}

  /// Returns the first address; null if the buffer is empty.
  void* data() const noexcept { return state_ ? state_->base() : nullptr; }
  /// Returns the size in bytes.
  std::size_t bytes() const noexcept { return state_ ? state_->bytes() : 0; }
  /// Returns the reserved addresses, in bytes.
  std::size_t reserved_addresses() const noexcept { return state_ ? state_->reserved() : 0; }
  /// Returns the bytes of mapped pages that are not discarded; they may lie beyond bytes().
  std::size_t mapped_bytes() const noexcept { return state_ ? state_->mapped() : 0; }
  /// Returns the unit of discards and of page sizes, in bytes.
  std::size_t granularity() const { return live().granularity(); }
  /// Returns the stream that was used last.
  stream_ref stream() const { return live().stream(); }
  /// Returns a span over the bytes as elements of T; a remainder smaller than T is left out.
  template <class T> span<T> as() const noexcept { return {static_cast<T*>(data()), bytes() / sizeof(T)}; }
  /// Returns whether the buffer has a pool: false if it was made empty, and after a move from it.
  explicit operator bool() const noexcept { return state_ != nullptr; }

  /// Returns an awaitable that makes the size at least `bytes`. A growth inside mapped pages takes no lock of the pool
  /// and makes no driver call for streams that gpumem made or adopted. A larger one maps whole pages. If the options
  /// name no size of pages, it also maps memory in advance: 1/64 of the size, or up to 32 MiB (an eighth of the size).
  /// If the pool has no memory for that, it maps less. While it waits, it counts in the line as the bytes that it
  /// lacks. If another growth of the buffer maps all of them, it is granted immediately.
  template <extend::stoppable_token Token = extend::never_stop_token>
  extend::growth_awaitable<Token> grow_to(stream_ref stream, std::size_t bytes, acquire_options const& options = {},
                                          Token token = {}) {
    return {{live(), {0, bytes}, detail::growth_request::aim::grow}, stream, options, std::move(token)};
  }
  /// Makes the size at least `bytes` now, or returns the failure; then the buffer is as it was.
  expected<void, failure> try_grow_to(stream_ref stream, std::size_t bytes) noexcept {
    return try_now(stream, {0, bytes}, detail::growth_request::aim::grow);
  }
  /// Grows now, or shrinks, to `bytes`. Throws what grow_to() and shrink_to() throw.
  void resize(stream_ref stream, std::size_t bytes) {
    auto& state = live();
    bytes < state.bytes() ? state.shrink_to(stream, bytes)
                          : state.grow(stream, bytes, detail::growth_request::aim::grow);
  }
  /// Makes the size `bytes`, which is at most bytes(), and gives the pages beyond it back. With `bytes()` it gives back
  /// what was mapped in advance. Throws std::invalid_argument, cuda_error and std::bad_alloc.
  void shrink_to(stream_ref stream, std::size_t bytes) { live().shrink_to(stream, bytes); }

  /// Gives memory in the middle back; the size stays. Both numbers are multiples of granularity(). The end may be that
  /// of the last page. A page goes once all of it is discarded. Throws std::invalid_argument, also if a part is
  /// discarded already, cuda_error and std::bad_alloc.
  void discard(stream_ref stream, std::size_t offset, std::size_t bytes) { live().discard(stream, {offset, bytes}); }
  /// Returns an awaitable that maps discarded memory again. Its contents are undefined.
  template <extend::stoppable_token Token = extend::never_stop_token>
  extend::growth_awaitable<Token> restore(stream_ref stream, std::size_t offset, std::size_t bytes,
                                          acquire_options const& options = {}, Token token = {}) {
    return {{live(), {offset, bytes}, detail::growth_request::aim::restore}, stream, options, std::move(token)};
  }
  /// Maps discarded memory again now, or returns the failure; then the buffer is as it was.
  expected<void, failure> try_restore(stream_ref stream, std::size_t offset, std::size_t bytes) noexcept {
    return try_now(stream, {offset, bytes}, detail::growth_request::aim::restore);
  }

private:
  friend struct detail::growable_access;
  growable_buffer(detail::page_lender lender, stream_ref stream, growable_options const& options)
      : state_{std::make_unique<detail::growable_state>(std::move(lender), options)} {
    if (options.discarded) {
      state_->begin_discarded(stream, options.initial);
    } else {
      state_->grow(stream, options.initial, detail::growth_request::aim::grow_exactly);
    }
  }
  static void check(bool pool_valid, growable_options const& options);
  [[noreturn]] static void throw_empty();
  detail::growable_state& live() const {
    if (!state_) [[unlikely]]
      throw_empty();
    return *state_;
  }
  expected<void, failure> try_now(stream_ref stream, extend::page_extent wanted,
                                  detail::growth_request::aim aim) noexcept {
    if (state_) return state_->try_now(stream, wanted, aim);
    return unexpected<failure>{{outcome::invalid_argument, static_cast<int>(broken_rule::moved_from), wanted.bytes}};
  }

  std::unique_ptr<detail::growable_state> state_;
};

} // namespace gpumem

namespace gpumem::detail {
inline growable_state& growable_access::state_of(growable_buffer const& buffer) { return buffer.live(); }
} // namespace gpumem::detail
