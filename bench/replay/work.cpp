// The kernel's code and its launch.
// SPDX-License-Identifier: Apache-2.0
module;

#include <cmath>
#include <cstdint>

module replay:work.impl;

import gpumem;
import :work;

namespace replay {

namespace detail {

// PTX by hand, so that the tool needs no nvcc; the driver compiles it for the device.
inline constexpr char const* work_ptx = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry gpumem_replay_work(.param .u64 block, .param .u64 bytes, .param .u64 nanoseconds)
{
  .reg .pred %p<3>;
  .reg .b64 %d<7>;
  ld.param.u64 %d1, [block];
  ld.param.u64 %d2, [bytes];
  ld.param.u64 %d3, [nanoseconds];
  setp.lt.u64 %p1, %d2, 4;
  @%p1 bra timing;
  st.volatile.u32 [%d1], 1;
timing:
  mov.u64 %d4, %globaltimer;
busy:
  mov.u64 %d5, %globaltimer;
  sub.u64 %d6, %d5, %d4;
  setp.lt.u64 %p2, %d6, %d3;
  @%p2 bra busy;
  ret;
}
)";

} // namespace detail

work_kernel::work_kernel(gpumem::device device, double microseconds)
    : device_{device}, nanoseconds_{static_cast<std::uint64_t>(std::llround(microseconds * 1000))} {
  gpumem::device_guard const here{device_};
  auto const& driver = gpumem::driver_api::driver();
  gpumem::driver_api::check(driver.module_load_data(&module_, detail::work_ptx), "load the kernel");
  gpumem::driver_api::check(driver.module_get_function(&function_, module_, "gpumem_replay_work"), "find the kernel");
}

work_kernel::~work_kernel() {
  try {
    gpumem::device_guard const here{device_};
    gpumem::driver_api::driver().module_unload(module_);
  } catch (...) {
    // fails only if the device is lost; its modules are lost with it
  }
}

void work_kernel::launch(gpumem::stream_ref stream, void* block, std::uint64_t bytes) const {
  std::uint64_t touched = block == nullptr ? 0 : bytes;
  std::uint64_t nanoseconds = nanoseconds_;
  void* arguments[] = {static_cast<void*>(&block), &touched, &nanoseconds};
  gpumem::driver_api::check(
      gpumem::driver_api::driver().launch_kernel(function_, 1, 1, 1, 1, 1, 1, 0, stream.get(), arguments, nullptr),
      "launch the kernel");
}

} // namespace replay
