// A device that reports a sticky error. A program of its own, since a device stays lost for the life of the process.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>

#include <cuda.h>

import gpumem;

namespace {

int frees_by_function = 0;

/// Functions that call the driver.
struct callback : gpumem::callback_resource<gpumem::mr::device_accessible> {
  explicit callback(gpumem::device where)
      : callback_resource{where,
                          [](gpumem::stream_ref, std::size_t bytes, std::size_t) {
                            CUdeviceptr p = 0;
                            gpumem::driver_api::check(gpumem::driver_api::driver().mem_alloc(&p, bytes), "mine");
                            return reinterpret_cast<void*>(p);
                          },
                          [](gpumem::stream_ref, void*, std::size_t, std::size_t) { ++frees_by_function; }} {}
};

/// Blocks with advice.
struct with_headroom : gpumem::system_resource {
  explicit with_headroom(gpumem::device where) : system_resource{where, {.headroom = 1024}} {}
};

class lost_device : public simulated {
protected:
  void TearDown() override {}

  template <class Resource> struct held {
    explicit held(gpumem::device where) : resource{where}, stream{where} {
      ordered = resource.allocate(stream, 1024);
      by_host = resource.allocate(stream, 1024);
    }
    void expect_bookkeeping() {
      EXPECT_THROW((void)resource.allocate(stream, 1024), gpumem::cuda_error);
      EXPECT_TRUE(resource.device().lost());
      resource.deallocate(stream, ordered, 1024);
      resource.deallocate_sync(by_host, 1024);
      EXPECT_EQ(resource.statistics().live, 0u);
      EXPECT_EQ(resource.statistics().reserved, 0u);
      EXPECT_EQ(resource.statistics().frees, 2u);
    }
    Resource resource;
    gpumem::stream stream;
    void* ordered;
    void* by_host;
  };
};

TEST_F(lost_device, lost_device_is_reported_and_frees_make_no_driver_call) {
  gpumem::device const where{1};
  held<gpumem::cuda_resource> plain{where};
  held<gpumem::managed_resource> managed{where};
  held<gpumem::pinned_resource> pinned{where};
  held<gpumem::system_resource> system{where};
  held<with_headroom> advised{where};
  held<gpumem::async_resource> async{where};
  held<gpumem::async_pinned_resource> async_pinned{where};
  held<gpumem::async_resource_view> view{where};
  held<callback> functions{gpumem::device{0}};
  gpumem::simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
  auto const got = async.resource.try_allocate(async.stream, 1024);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error(), (gpumem::failure{gpumem::outcome::device_lost, CUDA_ERROR_ILLEGAL_ADDRESS, 1024}));
  auto const refused = functions.resource.try_allocate(functions.stream, 1024);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), got.error());
  functions.expect_bookkeeping();
  EXPECT_EQ(frees_by_function, 0) << "called on a lost device";
  plain.expect_bookkeeping();
  managed.expect_bookkeeping();
  pinned.expect_bookkeeping();
  system.expect_bookkeeping();
  advised.expect_bookkeeping();
  async.expect_bookkeeping();
  async_pinned.expect_bookkeeping();
  view.expect_bookkeeping();
  EXPECT_EQ(async.resource.trim(), 0u);
}

} // namespace
