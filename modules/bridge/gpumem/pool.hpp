// Pools of GPU memory for C++17 and later, for GCC, clang and nvcc, without modules: a class over the C library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/error.hpp>
#include <gpumem/gpumem.h>
#include <gpumem/option_text.hpp>
#include <gpumem/pool_options.hpp>
#include <gpumem/statistics.hpp>
#include <gpumem/stream_handle.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

// With CCCL 3.1 or newer, class `pool` is a cuda::mr resource. A program that does not want CCCL's headers here defines
// GPUMEM_WITHOUT_CCCL.
#if !defined(GPUMEM_WITHOUT_CCCL) && defined(__has_include)
#if __has_include(<cuda/std/version>)
#include <cuda/std/version>
#if CCCL_VERSION >= 3001000
#include <gpumem/accessibility.hpp>
#define GPUMEM_DETAIL_WITH_MEMORY_RESOURCE
#endif
#endif
#endif

namespace gpumem {

namespace detail {

/// Throws the exception for the calling thread's last failed call: out_of_memory for exhausted and too_large,
/// std::invalid_argument for invalid_argument, acquire_error for all other outcomes.
[[noreturn]] inline void throw_last_failure() {
  gpumem_failure f{};
  f.size = sizeof f;
  gpumem_read_failure(&f);
  auto const reason = static_cast<outcome>(f.outcome);
  if (reason == outcome::exhausted || reason == outcome::too_large) {
    out_of_memory_info info;
    info.requested = f.requested;
    info.live = f.live;
    info.reserved = f.reserved;
    info.largest_free = f.largest_free;
    info.limit = f.limit;
    info.device_free = f.device_free;
    info.device_total = f.device_total;
    info.stream = f.stream;
    info.device = static_cast<int>(f.device);
    info.free = f.free;
    info.free_ranges = f.free_ranges;
    info.free_in_use = f.free_in_use;
    info.in_use_streams = f.in_use_streams;
    info.quarantined = f.quarantined;
    info.no_addresses = f.code == -2;
    throw out_of_memory{reason, info, gpumem_last_error()};
  }
  if (reason == outcome::invalid_argument) throw std::invalid_argument{gpumem_last_error()};
  throw acquire_error{failure{reason, f.code, static_cast<std::size_t>(f.requested)}, gpumem_last_error()};
}

inline void require(gpumem_outcome result) {
  if (result != GPUMEM_GRANTED) throw_last_failure();
}

inline std::uint64_t time_of(std::chrono::nanoseconds longest) noexcept {
  if (longest == (std::chrono::nanoseconds::max)()) return UINT64_MAX;
  return longest.count() < 0 ? 0 : static_cast<std::uint64_t>(longest.count());
}

} // namespace detail

class pool_block;

/// The result of try_allocate: a pointer or a failure, with the functions of std::expected<void*, failure>.
class try_result {
public:
  /// Makes a success; the pointer may be null.
  try_result(void* pointer) noexcept : pointer_{pointer} {}
  /// Makes a failure.
  try_result(failure const& failure) noexcept : why_{failure} {}
  /// Returns whether it holds a pointer.
  bool has_value() const noexcept { return why_.reason == outcome::granted; }
  /// Returns whether it holds a pointer.
  explicit operator bool() const noexcept { return has_value(); }
  /// Returns the pointer: null for 0 bytes, and after a failure.
  void* operator*() const noexcept { return pointer_; }
  /// Returns the failure; its reason is outcome::granted if there is none.
  failure const& error() const noexcept { return why_; }

private:
  void* pointer_ = nullptr;
  failure why_ = {outcome::granted, 0, 0};
};

/// The block, live or free, in which a pointer lies.
struct found_block {
  void* base = nullptr;      ///< start of the block, or of the free range
  std::size_t bytes = 0;     ///< requested bytes; 0 if the memory is free
  std::size_t allocated = 0; ///< rounded-up bytes; the size of the free range if the memory is free
  std::uint64_t stream = 0;  ///< id of the stream for which the block was allocated
  bool live = false;         ///< false: the memory is free
};

/// A pool over the memory of one device. Copies share it. When the last copy is destroyed, the memory goes back once
/// all uses are complete; the destructor does not wait for that. Shared libraries of one process can pass a pool to
/// each other. Any thread may call all functions, and several threads may use one pool at the same time.
///
/// Functions throw out_of_memory (a std::bad_alloc) with statistics of the pool, std::invalid_argument, and
/// acquire_error for other failures. If a pool was moved from, its functions throw std::invalid_argument, and
/// `try_allocate` returns a failure with outcome::invalid_argument.
class pool {
public:
  /// Makes a pool over virtual pages if the device supports them, otherwise over chunks. Throws std::invalid_argument
  /// for wrong options and for a device that does not exist. A name or a file in the options must have no comma, and no
  /// blank at its start or end.
  explicit pool(int device, pool_options const& options = {}) : pool{device, detail::option_text{options}.text()} {}
  /// Makes a pool, or a stack of resources, from the text that gpumem_make_pool takes, such as "limit=8GiB" or
  /// "binning(pool(managed),bins=256KiB:fixed)".
  pool(int device, std::string const& text) { detail::require(gpumem_make_pool(device, text.c_str(), &handle_)); }
  pool(int device, char const* text) { detail::require(gpumem_make_pool(device, text, &handle_)); }

  /// Returns a pool object for a pool that C or Python code has made, and adds a reference to that pool. Throws
  /// std::invalid_argument for null.
  static pool share(gpumem_pool* handle) {
    detail::require(gpumem_retain(handle));
    return pool{handle};
  }

  pool(pool const& other) noexcept : handle_{other.handle_} {
    if (handle_) gpumem_retain(handle_);
  }
  pool(pool&& other) noexcept : handle_{std::exchange(other.handle_, nullptr)} {}
  pool& operator=(pool other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~pool() {
    if (handle_) gpumem_release(handle_);
  }

  /// Gives up this object's share of the pool, as its destructor does, and leaves it as after a move. Before, records
  /// an event on each of the streams, so that no memory that was freed on them stays: see gpumem_release_on. If a
  /// stream captures, throws acquire_error with outcome::capture_unsupported and gives up nothing.
  template <class... Streams> void release_on(Streams const&... streams) {
    void* const handles[] = {stream_handle{streams}.value()..., nullptr};
    detail::require(gpumem_release_on(handle_, handles, sizeof...(streams)));
    handle_ = nullptr;
  }

  /// Allocates memory. Work that is enqueued on the stream from now on may use it. 0 bytes give null. The alignment is
  /// a power of two.
  [[nodiscard]] void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = GPUMEM_ALIGNMENT) {
    void* pointer = nullptr;
    detail::require(gpumem_allocate(handle_, stream.value(), bytes, alignment, &pointer));
    return pointer;
  }
  /// Allocates like `allocate`, but returns a failure instead of throwing.
  [[nodiscard]] try_result try_allocate(stream_handle stream, std::size_t bytes,
                                        std::size_t alignment = GPUMEM_ALIGNMENT) noexcept {
    void* pointer = nullptr;
    if (gpumem_allocate(handle_, stream.value(), bytes, alignment, &pointer) == GPUMEM_GRANTED) return pointer;
    gpumem_failure f{};
    f.size = sizeof f;
    gpumem_read_failure(&f);
    return failure{static_cast<outcome>(f.outcome), f.code, bytes};
  }
  /// Allocates like `allocate`, but a request that finds no memory waits in line while the calling thread sleeps, for
  /// at most `longest`; a negative time counts as 0. Throws acquire_error with outcome::deadline after that time, with
  /// outcome::stalled if no memory can come.
  [[nodiscard]] void* allocate_within(std::chrono::nanoseconds longest, stream_handle stream, std::size_t bytes,
                                      std::size_t alignment = GPUMEM_ALIGNMENT) {
    void* pointer = nullptr;
    detail::require(gpumem_acquire(handle_, stream.value(), bytes, alignment, detail::time_of(longest), &pointer));
    return pointer;
  }
  /// Returns a block that its destructor frees. Waits for memory as `allocate_within` does, by default without end.
  [[nodiscard]] pool_block acquire(stream_handle stream, std::size_t bytes,
                                   std::chrono::nanoseconds longest = (std::chrono::nanoseconds::max)(),
                                   std::size_t alignment = GPUMEM_ALIGNMENT);

  /// Frees in the order of the stream: work enqueued on it earlier may still use the memory. The stream must be ordered
  /// after all uses that record_use() did not declare. Null does nothing. A misuse is printed to stderr, and frees
  /// nothing.
  void deallocate(stream_handle stream, void* pointer, std::size_t bytes, std::size_t = GPUMEM_ALIGNMENT) noexcept {
    if (pointer) report(gpumem_free_sized(handle_, stream.value(), pointer, bytes), pointer);
  }
  /// Frees like the function above, without a size.
  void deallocate(stream_handle stream, void* pointer) noexcept {
    if (pointer) report(gpumem_free(handle_, stream.value(), pointer), pointer);
  }

  /// Allocates memory that work on any stream may use immediately, since all earlier uses of the memory are complete.
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = GPUMEM_ALIGNMENT) {
    void* pointer = nullptr;
    detail::require(gpumem_allocate_sync(handle_, bytes, alignment, &pointer));
    return pointer;
  }
  /// Frees memory. The caller guarantees that all uses are complete and that the host has seen that.
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t = GPUMEM_ALIGNMENT) noexcept {
    if (pointer) report(gpumem_free_sync(handle_, pointer, bytes), pointer);
  }

  /// Declares that all uses of the block on `stream` are enqueued. The free of the block need not be ordered after
  /// these uses: gpumem orders the reuse of the memory after them. Null does nothing.
  void record_use(void* pointer, stream_handle stream) {
    detail::require(gpumem_record_use(handle_, pointer, stream.value()));
  }

  /// Makes the reserved bytes at least `bytes`. The bytes that are missing come from the device in one piece.
  void reserve(std::size_t bytes) { detail::require(gpumem_reserve(handle_, bytes)); }
  /// Sets the most bytes that may be reserved; 0: no limit.
  void set_limit(std::size_t bytes) { detail::require(gpumem_set_limit(handle_, bytes)); }
  /// Gives free memory back to the device, as long as at least `keep` bytes stay reserved. Returns the bytes given
  /// back. Waits for nothing.
  std::size_t trim(std::size_t keep = 0) {
    std::size_t given_back = 0;
    detail::require(gpumem_trim(handle_, keep, &given_back));
    return given_back;
  }
  /// Waits on the host for all work that still uses free memory, so that the memory can go back to the device. Returns
  /// false if that takes longer than `longest`, or longer than one hour. A negative time counts as 0.
  bool synchronize(std::chrono::nanoseconds longest = std::chrono::hours{1}) {
    auto const result = gpumem_synchronize(handle_, detail::time_of(longest));
    if (result == GPUMEM_DEADLINE) return false;
    detail::require(result);
    return true;
  }

  /// Returns the statistics of the pool.
  gpumem::statistics statistics() const;
  /// Returns the block, live or free, in which the pointer lies; no value if the pool does not own the pointer.
  std::optional<found_block> find(void const* pointer) const {
    gpumem_block b{};
    b.size = sizeof b;
    detail::require(gpumem_find(handle_, pointer, &b));
    if (!b.base) return std::nullopt;
    return found_block{b.base, static_cast<std::size_t>(b.bytes), static_cast<std::size_t>(b.allocated), b.stream,
                       b.live != 0};
  }
  /// Names a live block of the caller in snapshots and reports until it is freed; an empty label takes the name away.
  /// See gpumem_set_label.
  void set_label(void const* pointer, std::string const& label) {
    detail::require(gpumem_set_label(handle_, pointer, label.c_str()));
  }
  /// Writes a file with all that the pool knows of its memory; the options are those of gpumem_write_snapshot.
  void write_snapshot(std::string const& path, std::string const& options = {}) const {
    detail::require(gpumem_write_snapshot(handle_, path.c_str(), options.c_str()));
  }
  /// Returns the ordinal of the device.
  int device() const {
    int ordinal = -1;
    detail::require(gpumem_device(handle_, &ordinal));
    return ordinal;
  }

  /// Returns whether the host can access the memory, as managed and pinned memory. Such memory is granted only when all
  /// its earlier uses are complete, so the host may touch it as soon as it is allocated. False after a move from it.
  bool is_host_accessible() const noexcept {
    int accessible = 0;
    return handle_ && gpumem_host_accessible(handle_, &accessible) == GPUMEM_GRANTED && accessible;
  }

  /// Returns the C library's pool, which lives as long as this object. Returns null if this object was moved from.
  gpumem_pool* handle() const noexcept { return handle_; }

  /// Returns whether both are the same pool: each can then free the other's blocks.
  friend bool operator==(pool const& a, pool const& b) noexcept { return a.handle_ == b.handle_; }
  /// Returns whether they are different pools.
  friend bool operator!=(pool const& a, pool const& b) noexcept { return !(a == b); }

#if defined(GPUMEM_DETAIL_WITH_MEMORY_RESOURCE)
  // Tells CCCL that devices can access the memory.
  friend void get_property(pool const&, cuda::mr::device_accessible) noexcept {}
#if CCCL_VERSION >= 3002000
  /// The properties that containers of CCCL use if the caller names none.
  using default_queries = cuda::mr::properties_list<cuda::mr::device_accessible>;
#endif
#if CCCL_VERSION >= 3004000
  // Tells CCCL at run time whether the host can access the memory too.
  friend auto get_property(pool const& self, cuda::mr::dynamic_accessibility_property) noexcept {
    return detail::accessibility_of(true, self.is_host_accessible());
  }
#endif
#endif

private:
  explicit pool(gpumem_pool* handle) noexcept : handle_{handle} {}

  static void report(gpumem_outcome result, void* pointer) noexcept {
    if (result != GPUMEM_GRANTED) std::fprintf(stderr, "gpumem: %p was not freed: %s\n", pointer, gpumem_last_error());
  }

  gpumem_pool* handle_ = nullptr;
};

/// Owns a block of a pool, and keeps the pool alive. The destructor frees the block in the order of its stream, which
/// must live until then. Move-only; one thread at a time.
class pool_block {
public:
  pool_block() noexcept = default;
  /// Allocates; throws what pool::allocate throws.
  pool_block(pool pool, stream_handle stream, std::size_t bytes, std::size_t alignment = GPUMEM_ALIGNMENT)
      : pool_block{without_memory{}, std::move(pool), stream, bytes} {
    data_ = from_->allocate(stream, bytes, alignment);
  }
  pool_block(pool_block&& other) noexcept
      : from_{std::move(other.from_)}, stream_{other.stream_}, data_{std::exchange(other.data_, nullptr)},
        bytes_{std::exchange(other.bytes_, 0)} {}
  pool_block& operator=(pool_block&& other) noexcept {
    pool_block moved{std::move(other)};
    std::swap(from_, moved.from_);
    std::swap(stream_, moved.stream_);
    std::swap(data_, moved.data_);
    std::swap(bytes_, moved.bytes_);
    return *this;
  }
  ~pool_block() { reset(); }

  /// Returns the pointer; null for 0 bytes.
  void* data() const noexcept { return data_; }
  /// Returns the requested bytes; 0 if it was moved from.
  std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the stream in whose order the block is valid and will be freed.
  CUstream_st* stream() const noexcept { return stream_; }
  /// Returns whether it holds memory: false for 0 bytes, and if it was moved from.
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /// Frees the block now, in the order of its stream.
  void reset() noexcept { reset(stream_); }
  /// Frees the block in the order of another stream, which the caller has ordered after all uses.
  void reset(stream_handle stream) noexcept {
    if (data_) from_->deallocate(stream, std::exchange(data_, nullptr), std::exchange(bytes_, 0));
  }
  /// Gives up ownership and returns the pointer, which the caller frees with the pool's `deallocate`.
  [[nodiscard]] void* release() noexcept {
    bytes_ = 0;
    return std::exchange(data_, nullptr);
  }

private:
  friend class pool;
  struct without_memory {};
  pool_block(without_memory, pool pool, stream_handle stream, std::size_t bytes) noexcept
      : from_{std::move(pool)}, stream_{static_cast<CUstream_st*>(stream.value())}, bytes_{bytes} {}

  std::optional<pool> from_;
  CUstream_st* stream_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

inline pool_block pool::acquire(stream_handle stream, std::size_t bytes, std::chrono::nanoseconds longest,
                                std::size_t alignment) {
  pool_block block{pool_block::without_memory{}, *this, stream, bytes};
  block.data_ = allocate_within(longest, stream, bytes, alignment);
  return block;
}

inline gpumem::statistics pool::statistics() const {
  gpumem_statistics f{};
  f.size = sizeof f;
  detail::require(gpumem_read_statistics(handle_, &f));
  gpumem::statistics result;
  result.live = f.live;
  result.allocated = f.allocated;
  result.cached = f.cached;
  result.reserved = f.reserved;
  result.largest_free = f.largest_free;
  result.limit = f.limit;
  result.largest_block = f.largest_block;
  result.peak_live = f.peak_live;
  result.peak_reserved = f.peak_reserved;
  result.reserved_in_all = f.reserved_in_all;
  result.shards = f.shards;
  result.lent = f.lent;
  result.allocations = f.allocations;
  result.frees = f.frees;
  result.failures = f.failures;
  result.upstream_allocations = f.upstream_allocations;
  result.upstream_frees = f.upstream_frees;
  result.coalesces = f.coalesces;
  result.coalesces_refused = f.coalesces_refused;
  result.reuse_same_stream = f.reuse_same_stream;
  result.reuse_thread_cache = f.reuse_thread_cache;
  result.reuse_ordered = f.reuse_ordered;
  result.reuse_completed = f.reuse_completed;
  result.reuse_waited = f.reuse_waited;
  result.reuse_after_sync = f.reuse_after_sync;
  result.free = f.free;
  result.free_ranges = f.free_ranges;
  result.free_in_use = f.free_in_use;
  result.in_use_streams = f.in_use_streams;
  result.quarantined = f.quarantined;
  result.waiting = f.waiting;
  result.waiting_bytes = f.waiting_bytes;
  result.oldest_wait_ns = f.oldest_wait_ns;
  return result;
}

} // namespace gpumem
