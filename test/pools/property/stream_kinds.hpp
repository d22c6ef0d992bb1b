// The streams of the random programs, one or more of every kind. Include it after `import gpumem;` and after <atomic>,
// <cstdint>, <cuda.h> and <dlfcn.h>: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

template <class Function> Function* driver_function(char const* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

// The streams of a program. Null and per-thread are different streams in each thread. One thread owns `spin`, on which
// the device waits for work that is enqueued later.
enum stream_choice : int {
  own_a,
  own_b,
  adopted,
  foreign_c,
  foreign_d,
  legacy,
  null,
  per_thread,
  spin,
  stream_choices
};

// Objects that live as long as the process.
struct stream_fixtures {
  static constexpr std::size_t region_bytes = std::size_t{256} << 20;
  static constexpr std::uint32_t most_flags = 4096;
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device}, spin{device};
  CUstream adopted_handle = make_stream(CU_STREAM_NON_BLOCKING);
  gpumem::stream adopted = gpumem::stream::adopt(adopted_handle);
  std::uintptr_t region = allocate(region_bytes);
  std::uintptr_t flags = allocate(most_flags * sizeof(std::uint32_t));
  std::atomic<std::uint32_t> raised{0};

  static CUstream make_stream(unsigned flags) {
    static auto* const create = driver_function<decltype(cuStreamCreate)>("cuStreamCreate");
    CUstream made = nullptr;
    gpumem::driver_api::check(create(&made, flags), "cuStreamCreate");
    return made;
  }
  static void destroy_stream(CUstream handle) {
    static auto* const destroy = driver_function<decltype(cuStreamDestroy)>("cuStreamDestroy_v2");
    gpumem::driver_api::check(destroy(handle), "cuStreamDestroy");
  }
  static std::uintptr_t allocate(std::size_t bytes) {
    CUdeviceptr p{};
    gpumem::driver_api::check(gpumem::driver_api::driver().mem_alloc(&p, bytes), "cuMemAlloc");
    return p;
  }
  // Each wait has a word of its own, so that a late write cannot undo another one.
  std::uintptr_t flag(std::uint32_t value) const { return flags + value % most_flags * sizeof value; }
  void wait_for_flag(CUstream stream, std::uint32_t value) const {
    static auto* const wait = driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32_v2");
    gpumem::driver_api::check(wait(stream, flag(value), value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
  }
  void write_flag(CUstream stream, std::uint32_t value) const {
    static auto* const write = driver_function<decltype(cuStreamWriteValue32)>("cuStreamWriteValue32_v2");
    gpumem::driver_api::check(write(stream, flag(value), value, 0), "cuStreamWriteValue32");
  }
};

inline stream_fixtures& fixed() {
  static auto* const one = new stream_fixtures;
  return *one;
}

} // namespace gpumem_test
