// Buffers that grow in place, for C++17 and later without modules, over the C library. Link gpumem::bridge.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/growable.h>
#include <gpumem/pool.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace gpumem {

/// Memory of a pool that grows at an address that never changes, while kernels use it and in graphs that were captured
/// before. See growable.h, whose functions this class calls; the module gpumem.growable has the same as
/// growable_buffer, with requests that a coroutine awaits. Functions throw what those of pool throw. Move-only. Any
/// thread, but no call may run during a move or the destructor. After a move from it, functions throw
/// std::invalid_argument.
class growable_block {
public:
  growable_block() noexcept = default;
  /// Reserves `reserve` bytes of addresses. `options` has those of gpumem_growable_make but `reserve`, such as
  /// "initial=1GiB,name=cache".
  growable_block(pool const& pool, stream_handle stream, std::size_t reserve, std::string const& options = {}) {
    auto const all = "reserve=" + std::to_string(reserve) + (options.empty() ? "" : "," + options);
    detail::require(gpumem_growable_make(pool.handle(), stream.value(), all.c_str(), &handle_));
  }
  growable_block(growable_block&& other) noexcept : handle_{std::exchange(other.handle_, nullptr)} {}
  growable_block& operator=(growable_block&& other) noexcept {
    growable_block moved{std::move(other)};
    std::swap(handle_, moved.handle_);
    return *this;
  }
  /// Frees the memory in the order of the stream that was used last.
  ~growable_block() { gpumem_growable_free(handle_); }

  /// Makes the size at least `bytes`. A request that finds no memory waits in line while the calling thread sleeps, for
  /// at most `longest`; a negative time counts as 0. Throws acquire_error with outcome::deadline after that time.
  void grow_to(stream_handle stream, std::size_t bytes,
               std::chrono::nanoseconds longest = (std::chrono::nanoseconds::max)()) {
    detail::require(gpumem_growable_grow(handle_, stream.value(), bytes, detail::time_of(longest)));
  }
  /// Makes the size `bytes`, which is at most bytes(), and gives the pages beyond it back in the order of the stream.
  void shrink_to(stream_handle stream, std::size_t bytes) {
    detail::require(gpumem_growable_shrink(handle_, stream.value(), bytes));
  }
  /// Gives memory in the middle back in the order of the stream. Both numbers are multiples of the granularity.
  void discard(stream_handle stream, std::size_t offset, std::size_t bytes) {
    detail::require(gpumem_growable_discard(handle_, stream.value(), offset, bytes));
  }
  /// Maps discarded memory again; its contents are undefined. Waits as `grow_to` does.
  void restore(stream_handle stream, std::size_t offset, std::size_t bytes,
               std::chrono::nanoseconds longest = (std::chrono::nanoseconds::max)()) {
    detail::require(gpumem_growable_restore(handle_, stream.value(), offset, bytes, detail::time_of(longest)));
  }

  /// Returns the address and the sizes of the buffer.
  gpumem_growable_sizes sizes() const {
    gpumem_growable_sizes result{};
    result.size = sizeof result;
    detail::require(gpumem_growable_info(handle_, &result));
    return result;
  }
  /// Returns the first address.
  void* data() const { return sizes().data; }
  /// Returns the size in bytes.
  std::size_t bytes() const { return static_cast<std::size_t>(sizes().bytes); }
  /// Returns whether it holds a buffer: false if it was made empty, and after a move from it.
  explicit operator bool() const noexcept { return handle_ != nullptr; }

private:
  gpumem_growable* handle_ = nullptr;
};

} // namespace gpumem
