// The functions of the .cu file of these tests for C++ units: only CCCL's types are passed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/services.hpp>

#include <cstddef>

bool allocate_through_thrust_allocator(cuda::stream_ref stream, gpumem::any_pool resource);
/// Returns whether containers of the default allocator are empty, take over another allocator, and allocate nothing.
bool use_default_allocator(cuda::stream_ref stream, gpumem::any_pool resource);
gpumem::outcome try_in_cu(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t bytes);
