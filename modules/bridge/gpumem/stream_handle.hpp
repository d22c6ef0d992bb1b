// stream_handle: a stream as an argument of functions that C++17 code calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem.h>

#include <cstdint>
#include <utility>

struct CUstream_st; // the type to which a CUstream or cudaStream_t points

namespace gpumem {

/// A stream as an argument: a CUstream or cudaStream_t, or an object whose get() returns one, such as cuda::stream_ref.
/// Null is the default stream that the compiler of the calling code uses: the legacy stream, or with `nvcc
/// --default-stream per-thread` (CUDA_API_PER_THREAD_DEFAULT_STREAM) that of the calling thread.
class stream_handle {
public:
  /// Takes a stream's handle. Always inlined, since CUDA_API_PER_THREAD_DEFAULT_STREAM can be defined in some files of
  /// a program and not in others.
  __attribute__((always_inline)) inline stream_handle(CUstream_st* stream) noexcept : value_{stream} {
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
    constexpr std::uintptr_t usual = 2; // GPUMEM_STREAM_PER_THREAD
#else
    constexpr std::uintptr_t usual = 1; // GPUMEM_STREAM_LEGACY
#endif
    if (!stream) value_ = reinterpret_cast<void*>(usual);
  }
  /// Takes the handle that get() of the object returns.
  template <class Stream, class = decltype(static_cast<CUstream_st*>(std::declval<Stream const&>().get()))>
  __attribute__((always_inline)) inline stream_handle(Stream const& stream) noexcept : stream_handle{stream.get()} {}

  /// Returns the handle; GPUMEM_STREAM_LEGACY or GPUMEM_STREAM_PER_THREAD for a default stream.
  void* value() const noexcept { return value_; }

private:
  void* value_;
};

} // namespace gpumem
