// Thrust for C++ units, on a host system of Thrust, over memory that the host can reach.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/thrust.hpp>
#include <thrust/device_vector.h>
export module gpumem.thrust;

export namespace gpumem {
using gpumem::thrust_allocator;
using gpumem::thrust_resource;

/// A vector of Thrust's in memory of a resource.
template <class T> using device_vector = thrust::device_vector<T, thrust_allocator<T>>;
} // namespace gpumem

/// What a unit needs to call algorithms: `thrust::sort(thrust::device(allocator), …)`.
export namespace thrust {
using thrust::device;
using thrust::device_ptr;
using thrust::raw_pointer_cast;
} // namespace thrust
