// The capture scopes of a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:pool_captures;
import :cuda;
import :device;
import :error;
import :graph_memory;
import :intrusive_list;
import :pool_reports;
import :shared_state;
import :std;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

export class open_capture;

/// Keeps the graph memories that a pool has used, and its open capture scopes. Each scope is opened for one stream. Any
/// thread.
export class pool_captures {
public:
  /// Returns the graph memory for requests on a capturing stream. It is the memory of this stream's scope, or otherwise
  /// of the oldest scope whose stream takes part in the same capture. Fails with outcome::capture_unsupported if there
  /// is no such scope, and with driver_error if the capture is invalid.
  expected<state_ptr<graph_memory>, failure> find(stream_key const& key, std::size_t bytes) noexcept;

  inline graph_memory_list& memories() noexcept { return memories_; }

private:
  friend class open_capture;
  void begin_scope(open_capture& capture);
  void end_scope(open_capture& capture) noexcept;

  graph_memory_list memories_;
  sync::mutex mutex_;
  intrusive_list<open_capture> scopes_ GPUMEM_GUARDED_BY(mutex_); // the oldest first
};

/// One open capture scope. It keeps the graph memory alive, and with it the pool.
export class open_capture {
public:
  /// `pool`: the state of the pool, which must be the upstream of the memory. Throws std::invalid_argument if it is
  /// not, or if the stream cannot capture or already has a scope of this pool. Throws also what identify(), which looks
  /// up the stream, throws.
  open_capture(pool_captures& captures, void const* pool, graph_memory& memory, stream_ref stream,
               std::optional<device> device);
  open_capture(open_capture const&) = delete;
  open_capture& operator=(open_capture const&) = delete;
  ~open_capture();

private:
  friend class pool_captures;
  friend class intrusive_list<open_capture>;

  state_ptr<graph_memory> const memory_;
  pool_captures& captures_;
  stream_key const key_;
  list_links<open_capture> links_;
};

} // namespace gpumem::detail
