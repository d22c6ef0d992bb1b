// A fixture for streams that the user makes and destroys, with a kernel that runs until the test ends it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "upstream.hpp"

#include <cstddef>
#include <cstdint>

#include <cuda.h>

import gpumem;

namespace gpumem_test {

inline gpumem::stream_ref make_foreign(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream made = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&made, flags), "cuStreamCreate");
  return gpumem::stream_ref{made};
}

inline void destroy(gpumem::stream_ref foreign) {
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_destroy(foreign.get()), "cuStreamDestroy");
}

inline std::size_t timelines() { return gpumem::detail::timeline_registry::instance().size(); }

class raw_stream_test : public simulated_test {
protected:
  void SetUp() override {
    gpumem::driver_api::check(gpumem::driver_api::driver().mem_host_alloc(&flag_, 64, 0), "cuMemHostAlloc");
    begin_long();
  }
  void TearDown() override {
    simulated_test::TearDown();
    gpumem::driver_api::driver().mem_free_host(flag_);
  }
  // Kernels of run_long() run until end_long() from here on.
  void begin_long() { *static_cast<std::uint32_t volatile*>(flag_) = 0; }
  void run_long(gpumem::stream_ref on) {
    driver_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32_v2")(
        on.get(), reinterpret_cast<CUdeviceptr>(flag_), 1, CU_STREAM_WAIT_VALUE_EQ);
  }
  void end_long() { *static_cast<std::uint32_t volatile*>(flag_) = 1; }

  gpumem::device device = gpumem::device::current();
  gpumem::stream lasting{device};

private:
  void* flag_ = nullptr;
};

} // namespace gpumem_test
