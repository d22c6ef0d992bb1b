// The bridge as a .cu file sees it: its types compile, and calls reach a resource that was made elsewhere.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/thrust.hpp>

#include "thrust_cu.hpp"

template class gpumem::thrust_allocator<int>;

static_assert(sizeof(gpumem::any_pool) == 48);

bool allocate_through_thrust_allocator(cuda::stream_ref stream, gpumem::any_pool resource) {
  gpumem::thrust_allocator<double> const doubles{stream, resource};
  gpumem::thrust_allocator<int> ints{doubles};
  if (gpumem::thrust_allocator<double>{ints} != doubles) return false;
  auto const block = ints.allocate(1000);
  bool const aligned = reinterpret_cast<std::size_t>(thrust::raw_pointer_cast(block)) % 256 == 0;
  ints.deallocate(block, 1000);
  return aligned;
}

gpumem::outcome try_in_cu(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t bytes) {
  auto const got = gpumem::try_allocate_erased(resource, stream, bytes);
  if (!got) return got.error().reason;
  resource.deallocate(stream, *got, bytes, 256);
  return gpumem::outcome::granted;
}
