// Heaps for kernels, for C++17 and later without modules, over the C library and CUDA's runtime. Link gpumem::bridge
// and the runtime. Code with kernels includes <gpumem/device_heap.cuh>, which includes this header.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/device_heap.hpp>
#include <gpumem/growable.hpp>

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpumem {

/// Memory of a pool from which kernels allocate, by the functions of view(). It reserves addresses for the most that it
/// can ever have, and borrows pages of the pool. It grows between launches and beside kernels, at the same addresses.
/// The module gpumem.device_heap has the same class, with a growth and statistics that a coroutine awaits.
///
/// Stream order: the constructor, grow_to() and reset() take effect in the order of the stream, which the caller orders
/// after that of the last call. Work of other streams is ordered after them by the caller. The destructor frees the
/// memory in the order of the stream of the last growth; all work on other streams must be ordered before.
///
/// Functions throw what those of pool throw, and acquire_error for an error of the runtime. The pool's device must be
/// current. Move-only; one thread at a time. After a move from it, functions throw std::invalid_argument.
class device_heap {
public:
  device_heap() noexcept = default;
  /// Reserves addresses, and grows to `options.bytes` without a wait. `pool`: over pages. The name in the options must
  /// have no comma. Throws std::invalid_argument for wrong options.
  device_heap(pool const& pool, stream_handle stream, device_heap_options const& options)
      : options_{heap_detail::checked(options)}, layout_{heap_detail::make_layout(options_.reserve)},
        data_{pool, stream, options_.reserve, growable_text(options_.bytes, "")},
        metadata_{pool, stream, metadata_bytes(options_.reserve),
                  growable_text(metadata_bytes(options_.bytes), " metadata")} {
    refuse_capture(stream);
    fill(stream, heap_detail::fill_of_begin(layout_));
    publish(stream, options_.bytes);
  }
  device_heap(device_heap&& other) noexcept = default;
  device_heap& operator=(device_heap&& other) noexcept = default;

  /// Returns the heap for kernels, to which it is passed by value. It stays valid when the heap grows, is reset, or is
  /// moved.
  heap_view view() const {
    require_memory();
    return {data_.data(), metadata_.data(), options_.reserve, bytes_};
  }
  /// Returns the size in bytes, a multiple of 2 MiB.
  std::size_t bytes() const noexcept { return data_ ? bytes_ : 0; }
  /// Returns the reserved addresses, in bytes: the most that the heap can ever have.
  std::size_t reserved_addresses() const noexcept { return data_ ? options_.reserve : 0; }
  /// Returns whether it has memory: false if it was made empty, and after a move from it.
  explicit operator bool() const noexcept { return static_cast<bool>(data_); }

  /// Makes the size at least `bytes`, rounded up to 2 MiB. A request that finds no memory waits in line while the
  /// calling thread sleeps, for at most `longest`. After a failure the heap is as it was, but for a failure of the
  /// runtime in the last step. A stream that captures throws acquire_error with outcome::capture_unsupported.
  void grow_to(stream_handle stream, std::size_t bytes,
               std::chrono::nanoseconds longest = (std::chrono::nanoseconds::max)()) {
    require_memory();
    refuse_capture(stream);
    auto const begin = std::chrono::steady_clock::now();
    bool const fits = bytes <= options_.reserve; // otherwise the growth of the data throws
    auto const size = fits ? heap_detail::round_to_units(bytes) : bytes;
    try {
      if (fits) metadata_.grow_to(stream, metadata_bytes(size), longest);
      if (longest != (std::chrono::nanoseconds::max)()) longest -= std::chrono::steady_clock::now() - begin;
      data_.grow_to(stream, size, longest);
      publish(stream, size);
    } catch (...) {
      shrink(stream);
      throw;
    }
  }
  /// Frees all blocks, and sets the counts of the statistics to 0. The caller orders the stream after all kernels that
  /// use the heap, and those that use it later after the stream. A reset in a graph frees the blocks at each launch.
  /// Capture it again after a growth: otherwise kernels cannot use the memory of the growth after such a launch. After
  /// a failure call it again.
  void reset(stream_handle stream) {
    require_memory();
    fill(stream, heap_detail::fill_of_begin(layout_));
    for (auto const& each : heap_detail::fills_of_growth(layout_, 0, bytes_ / heap_detail::slab_bytes))
      fill(stream, each);
  }
  /// Waits for the stream, and returns what kernels have allocated by then. The numbers of blocks are exact if no
  /// kernel of another stream uses the heap meanwhile. A stream that captures throws acquire_error with
  /// outcome::capture_unsupported.
  device_heap_statistics statistics(stream_handle stream) const {
    require_memory();
    refuse_capture(stream);
    auto const slabs = bytes_ / heap_detail::slab_bytes;
    std::vector<unsigned char> copy(heap_detail::counted_bytes(layout_, slabs));
    require(cudaMemcpyAsync(copy.data(), metadata_.data(), copy.size(), cudaMemcpyDeviceToHost, handle_of(stream)),
            "cudaMemcpyAsync");
    require(cudaStreamSynchronize(handle_of(stream)), "cudaStreamSynchronize");
    return heap_detail::count_blocks(layout_, copy.data(), slabs);
  }

private:
  static cudaStream_t handle_of(stream_handle stream) noexcept { return static_cast<cudaStream_t>(stream.value()); }
  std::string growable_text(std::size_t initial, char const* part) const {
    return "initial=" + std::to_string(initial) + ",name=" + options_.name + part;
  }
  std::size_t metadata_bytes(std::size_t bytes) const noexcept { return layout_.end(bytes / heap_detail::slab_bytes); }

  void require_memory() const {
    if (!data_) throw std::invalid_argument{"gpumem: device_heap: the heap is empty; was it moved from?"};
  }
  void require(cudaError_t result, char const* call) const {
    if (result != cudaSuccess)
      throw acquire_error{failure{outcome::driver_error, static_cast<int>(result), 0},
                          "gpumem: " + options_.name + ": " + call + ": " + cudaGetErrorString(result)};
  }
  void refuse_capture(stream_handle stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    require(cudaStreamIsCapturing(handle_of(stream), &status), "cudaStreamIsCapturing");
    if (status != cudaStreamCaptureStatusNone) throw acquire_error{failure{outcome::capture_unsupported, 0, 0}};
  }
  void fill(stream_handle stream, heap_detail::fill const& part) const {
    if (part.bytes == 0) return;
    auto* const begin = static_cast<unsigned char*>(metadata_.data()) + part.offset;
    require(cudaMemsetAsync(begin, part.value, part.bytes, handle_of(stream)), "cudaMemsetAsync");
  }
  // Lets kernels use memory up to `bytes`.
  void publish(stream_handle stream, std::size_t bytes) {
    if (bytes <= bytes_) return;
    auto const old = bytes_ / heap_detail::slab_bytes, now = bytes / heap_detail::slab_bytes;
    for (auto const& each : heap_detail::fills_of_growth(layout_, old, now)) {
      fill(stream, each);
      // Kernels can use the memory once the first bits of free slabs are set, even if a later fill fails.
      if (each.value != 0) bytes_ = bytes;
    }
  }
  // Gives back what a growth that failed has left.
  void shrink(stream_handle stream) noexcept {
    try {
      if (data_.bytes() > bytes_) data_.shrink_to(stream, bytes_);
      if (metadata_.bytes() > metadata_bytes(bytes_)) metadata_.shrink_to(stream, metadata_bytes(bytes_));
    } catch (...) {} // the pages stay until another growth fails, or the heap ends
  }

  device_heap_options options_;
  heap_detail::layout layout_;
  growable_block data_, metadata_;
  std::size_t bytes_ = 0;
};

} // namespace gpumem
