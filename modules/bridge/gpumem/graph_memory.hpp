// Memory for captured CUDA graphs, for C++17 and later without modules, over the C library. Link gpumem::bridge.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/graph_memory.h>
#include <gpumem/pool.hpp>

#include <cstddef>
#include <memory>

namespace gpumem {

/// Memory of a pool that captured graphs use at each launch. See graph_memory.h, whose functions this class calls; the
/// module has the same as graph_resource. Keep it as long as the graphs. The destructor gives the memory back to the
/// pool once its blocks are freed; the caller has waited for all launches. Functions throw what those of pool throw.
/// Move-only. Any thread, but no call may run during a move or the destructor. After a move from it, functions throw
/// std::invalid_argument.
class graph_memory {
  struct deleter {
    void operator()(gpumem_graph_memory* memory) const noexcept { gpumem_graph_memory_free(memory); }
    void operator()(gpumem_capture_scope* scope) const noexcept { gpumem_capture_scope_end(scope); }
  };

public:
  /// A time in which the pool serves a capturing stream from graph memory. The destructor ends that time. Move-only;
  /// one thread at a time.
  class capture_scope {
    friend class graph_memory;
    explicit capture_scope(gpumem_capture_scope* handle) noexcept : handle_{handle} {}
    std::unique_ptr<gpumem_capture_scope, deleter> handle_;
  };

  /// Takes no memory from the pool yet.
  explicit graph_memory(pool const& pool) {
    gpumem_graph_memory* made = nullptr;
    detail::require(gpumem_graph_memory_make(pool.handle(), &made));
    handle_.reset(made);
  }

  /// Opens a capture scope: until the result is destroyed, the pool serves requests on the stream, and on streams that
  /// joined its capture, from this memory. The scope may be opened before or after the capture begins. See
  /// gpumem_graph_memory_capture for the memory of a first run.
  [[nodiscard]] capture_scope capture(stream_handle stream) {
    gpumem_capture_scope* scope = nullptr;
    detail::require(gpumem_graph_memory_capture(handle_.get(), stream.value(), &scope));
    return capture_scope{scope};
  }
  /// Returns the bytes that the memory has from its pool.
  std::size_t bytes() const {
    std::size_t result = 0;
    detail::require(gpumem_graph_memory_bytes(handle_.get(), &result));
    return result;
  }

private:
  std::unique_ptr<gpumem_graph_memory, deleter> handle_;
};

} // namespace gpumem
