// A fixture with streams of gpumem's own and a foreign stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../support/simulated.hpp"

#include <chrono>
#include <cstddef>
#include <optional>

#include <cuda.h>

import gpumem;

inline constexpr std::size_t mib = std::size_t{1} << 20;

class streams_of_all_kinds : public simulated {
protected:
  void SetUp() override {
    simulated::SetUp();
    current_.emplace(gpumem::device{0});
    ASSERT_EQ(gpumem::driver_api::driver().stream_create(&foreign_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  void TearDown() override {
    destroy_foreign();
    current_.reset();
    simulated::TearDown();
  }
  void destroy_foreign() {
    if (foreign_) EXPECT_EQ(gpumem::driver_api::driver().stream_destroy(foreign_), CUDA_SUCCESS);
    foreign_ = nullptr;
  }
  gpumem::stream_ref foreign() const { return gpumem::stream_ref{foreign_}; }
  /// Enqueues work that uses the block; it has not run when this returns.
  void use(gpumem::stream_ref on, void* p, std::size_t bytes = mib) {
    ran_ = false;
    gpumem::simulator::work(on, {gpumem::simulator::write(p, bytes)}, std::chrono::microseconds{50},
                            [this] { ran_ = true; });
  }

  std::optional<gpumem::device_guard> current_;
  gpumem::stream own_{gpumem::device{0}}, other_{gpumem::device{0}};
  CUstream foreign_ = nullptr;
  bool ran_ = false;
};
