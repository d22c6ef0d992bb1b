// Checks of the tests of gpumem in PyTorch, and their main. A case runs alone in its process, since PyTorch has one
// allocator per process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/headeronly/version.h>

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

extern "C" {
#include "simulated.h"
}

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*function)(DeviceIndex)); // declared in no header
}

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::MempoolId_t;
using torch_cuda::CUDAAllocator;

constexpr std::size_t kib = std::size_t{1} << 10;
constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t gib = std::size_t{1} << 30; // the simulated devices have 8 of them

inline int failures = 0;

inline void expect(bool holds, char const* text, int line) {
  if (holds) return;
  std::fprintf(stderr, "line %d: check failed: %s\n", line, text);
  ++failures;
}

template <class First, class Second>
void expect_equal(First const& is, Second const& wanted, char const* text, int line) {
  if (is == static_cast<First>(wanted)) return;
  std::fprintf(stderr, "line %d: %s: %s instead of %s\n", line, text, std::to_string(is).c_str(),
               std::to_string(wanted).c_str());
  ++failures;
}

/// Checks that the work throws this type of exception with a text that contains the sentence.
template <class Exception = c10::Error, class Work>
void expect_thrown(Work work, std::string const& sentence, int line) {
  try {
    work();
    std::fprintf(stderr, "line %d: nothing was thrown\n", line);
  } catch (Exception const& error) {
    std::string const text = error.what_without_backtrace();
    if (text.find(sentence) != std::string::npos) return;
    std::fprintf(stderr, "line %d: \"%s\" without \"%s\"\n", line, text.c_str(), sentence.c_str());
  } catch (std::exception const& error) {
    std::fprintf(stderr, "line %d: another exception: %s\n", line, error.what());
  }
  ++failures;
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)
#define EXPECT_EQUAL(is, wanted) expect_equal((is), (wanted), #is, __LINE__)
#define EXPECT_THROWN(work, sentence) expect_thrown([&] { static_cast<void>(work); }, sentence, __LINE__)
#define EXPECT_OUT_OF_MEMORY(work, sentence)                                                                           \
  expect_thrown<c10::OutOfMemoryError>([&] { static_cast<void>(work); }, sentence, __LINE__)

/// libtorch_cuda answers this for guards of devices; the tests do without that library.
inline bool has_primary_context(c10::DeviceIndex) { return true; }

inline void* library = nullptr; // the one that gpumem_torch_build made

/// Makes gpumem PyTorch's allocator. Returns the text of the failure; null if there is none.
inline char const* install() {
  auto* const function = dlsym(library, "gpumem_torch_install_allocator");
  return reinterpret_cast<char const* (*)()>(function)();
}

/// Returns PyTorch's allocator after gpumem was installed for both devices.
inline CUDAAllocator& installed() {
  if (auto* const failed = install()) {
    std::fprintf(stderr, "%s\n", failed);
    std::exit(1);
  }
  torch_cuda::get()->init(2);
  return *torch_cuda::get();
}

/// The same with a device that runs by itself, for requests that wait for it.
inline CUDAAllocator& installed_on_running_device() {
  simulated_reset_running(2);
  simulated_make_current(0);
  return installed();
}

/// Makes a stream of the device, as a C++ program does: PyTorch does not own it.
inline c10::cuda::CUDAStream new_stream(int device = 0) {
  auto* const made = static_cast<cudaStream_t>(simulated_stream(device));
  simulated_make_current(0);
  return c10::cuda::getStreamFromExternal(made, static_cast<c10::DeviceIndex>(device));
}

/// Returns the sum, and the parts of small and of large blocks, of one figure's current values.
inline std::vector<std::int64_t> current(c10::CachingAllocator::StatArray const& figure) {
  return {figure[0].current, figure[1].current, figure[2].current};
}

inline std::vector<std::int64_t> peaks(c10::CachingAllocator::StatArray const& figure) {
  return {figure[0].peak, figure[1].peak, figure[2].peak};
}

inline std::int64_t reserved(CUDAAllocator& allocator, int device = 0) {
  return allocator.getDeviceStats(static_cast<c10::DeviceIndex>(device)).reserved_bytes[0].current;
}

struct test {
  char const* name;
  void (*run)();
};

/// Arguments: the library, the case. Returns the exit status.
template <std::size_t Count> int run_test(test const (&tests)[Count], int count, char** arguments) {
  for (auto const& each : tests) {
    if (count != 3 || std::strcmp(each.name, arguments[2]) != 0) continue;
    simulated_reset(2);
    simulated_make_current(0);
    c10::cuda::_internal::setHasPrimaryContext(has_primary_context);
    library = dlopen(arguments[1], RTLD_NOW);
    if (!library) std::fprintf(stderr, "%s\n", dlerror());
    if (!library) return 1;
    try {
      each.run();
    } catch (c10::Error const& error) { expect(false, error.what_without_backtrace(), __LINE__); }
    expect(simulated_finish() == 0, "the device has no findings", __LINE__);
    return failures != 0;
  }
  std::fprintf(stderr, "usage: %s LIBRARY CASE\n", arguments[0]);
  return 2;
}
