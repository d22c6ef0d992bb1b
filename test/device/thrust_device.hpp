// What the .cu file of these tests offers to C++ units.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/services.hpp>

#include <cstddef>

/// Fills a vector backwards, sorts it, and looks whether it is sorted.
bool sorts_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count);
/// The sum of `count` twos.
long sum_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count);
