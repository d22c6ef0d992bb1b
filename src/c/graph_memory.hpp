// Graph memory over pools of the C ABI. Include it after `import gpumem;`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/graph_memory.h>

#include <cstddef>
#include <utility>

/// The graph memory to which a C caller has a pointer, whatever the type of its pool is. Any thread.
struct gpumem_graph_memory {
  gpumem_graph_memory() = default;
  gpumem_graph_memory(gpumem_graph_memory const&) = delete;
  gpumem_graph_memory& operator=(gpumem_graph_memory const&) = delete;
  virtual ~gpumem_graph_memory() = default;

  /// Throws what pool_resource::capture throws.
  virtual gpumem::capture_scope capture(gpumem::stream_ref stream) = 0;
  virtual std::size_t bytes() = 0;
};

struct gpumem_capture_scope {
  gpumem::capture_scope open;
};

namespace gpumem::c {

template <class Pool> class held_graph_memory final : public gpumem_graph_memory {
public:
  explicit held_graph_memory(Pool pool) : pool_{std::move(pool)} {}
  capture_scope capture(stream_ref stream) override { return pool_.capture(memory_, stream); }
  std::size_t bytes() override { return memory_.statistics().reserved; }

private:
  Pool pool_;
  graph_resource<Pool> memory_{pool_};
};

} // namespace gpumem::c
