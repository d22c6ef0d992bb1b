// Objects that all rows share, made while the host had memory. Included after `import gpumem`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "rows.hpp"

namespace no_memory {

struct parts {
  gpumem::device const card{0};
  gpumem::device_guard const here{card};
  gpumem::pool_resource<gpumem::cuda_resource> pool{card};
  gpumem::stream own{card}, other{card};
  gpumem::event mark{card};
  CUstream raw = nullptr; // new in each run, so that gpumem has not seen it
};

/// Returns the parts of the process.
inline parts& with() {
  static auto* const all = new parts;
  return *all;
}

/// Allocates in each way from a resource, and frees.
template <class R> void serve(R resource) {
  parts& use = with();
  for (gpumem::stream_ref const stream : {gpumem::stream_ref{use.own}, gpumem::stream_ref{use.raw}}) {
    void* const block = resource.allocate(stream, 64 * KiB, 256);
    resource.deallocate(stream, block, 64 * KiB, 256);
  }
  void* const at_once = resource.allocate_sync(1000, 256);
  resource.deallocate_sync(at_once, 1000, 256);
}

/// Also without exceptions and with waiting, for resources of gpumem.
template <class R> void serve_fully(R resource) {
  serve(resource);
  if constexpr (requires { resource.try_allocate(with().other, 3 * MiB); }) {
    if (auto const got = resource.try_allocate(with().other, 3 * MiB)) resource.deallocate(with().other, *got, 3 * MiB);
  }
  gpumem::statistics_of(resource);
  gpumem::trim(resource);
  gpumem::allocation const held = gpumem::acquire(resource, with().own, 4096).wait();
  gpumem::allocation const waited = gpumem::acquire(resource, with().own, 1000).wait(); // ends, although memory is live
}

std::vector<row> resource_rows();
std::vector<row> adaptor_rows();
std::vector<row> base_rows();
std::vector<row> container_rows();
std::vector<row> coroutine_rows();
std::vector<row> extend_rows();

} // namespace no_memory
