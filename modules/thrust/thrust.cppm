// The module gpumem.thrust: Thrust for C++ files. Algorithms run on a host backend of Thrust, on memory that the host
// can access.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/thrust.hpp>
#include <thrust/device_vector.h>
export module gpumem.thrust;

export namespace gpumem {
using gpumem::thrust_allocator;

/// A thrust::device_vector in memory of a gpumem resource.
template <class T> using device_vector = thrust::device_vector<T, thrust_allocator<T>>;
} // namespace gpumem

/// The names that a file needs to call algorithms: `thrust::sort(thrust::device(allocator), …)`.
export namespace thrust {
using thrust::device;
using thrust::device_ptr;
using thrust::raw_pointer_cast;
} // namespace thrust
