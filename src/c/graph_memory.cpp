// The functions of graph_memory.h.
// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>

#include <cstddef>

#include "failure.hpp"
#include "pool.hpp"

import gpumem;

#include "graph_memory.hpp"

using gpumem::c::outcome_of;
using gpumem::c::refuse;

namespace {

constexpr char const* no_memory = "the graph memory is NULL";

// Ends an object of a caller. In a forked child it does nothing, since the object's locks may never be unlocked.
template <class Object> gpumem_outcome end(Object* object) noexcept {
  if (gpumem::detail::forked()) return GPUMEM_GRANTED;
  return outcome_of([&] { delete object; });
}

} // namespace

gpumem_outcome gpumem_graph_memory_make(gpumem_pool* pool, gpumem_graph_memory** memory) noexcept {
  if (!pool) return refuse("gpumem_graph_memory_make", "the pool is NULL; was it moved from?");
  if (!memory) return refuse("gpumem_graph_memory_make", "the out-pointer is NULL");
  return outcome_of([&] {
    gpumem::detail::throw_if_child();
    *memory = pool->make_graph_memory();
  });
}

gpumem_outcome gpumem_graph_memory_capture(gpumem_graph_memory* memory, void* stream,
                                           gpumem_capture_scope** scope) noexcept {
  if (!memory) return refuse("gpumem_graph_memory_capture", no_memory);
  if (!scope) return refuse("gpumem_graph_memory_capture", "the out-pointer is NULL");
  gpumem::stream_ref const target{static_cast<CUstream>(stream)};
  return outcome_of([&] { *scope = new gpumem_capture_scope{memory->capture(target)}; });
}

gpumem_outcome gpumem_capture_scope_end(gpumem_capture_scope* scope) noexcept { return end(scope); }

gpumem_outcome gpumem_graph_memory_bytes(gpumem_graph_memory* memory, size_t* bytes) noexcept {
  if (!memory) return refuse("gpumem_graph_memory_bytes", no_memory);
  if (!bytes) return refuse("gpumem_graph_memory_bytes", "the out-pointer is NULL");
  return outcome_of([&] { *bytes = memory->bytes(); });
}

gpumem_outcome gpumem_graph_memory_free(gpumem_graph_memory* memory) noexcept { return end(memory); }
