// The capture scopes of a pool: which graph memory serves a capturing stream.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pool_captures;
import :block_info;
import :cuda;
import :device;
import :error;
import :graph_memory;
import :intrusive_list;
import :shared_state;
import :std;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

export class open_capture;

/// The graph memories that a pool has used, and its open capture scopes. Any thread.
export class pool_captures {
public:
  /// Returns the graph memory for requests on a capturing stream. It is that of the stream's own scope; otherwise that
  /// of the oldest scope whose stream belongs to the same capture. Fails with outcome::capture_unsupported if there is
  /// none.
  expected<state_ptr<graph_memory>, failure> find(stream_key const& key, std::size_t bytes) noexcept;

  inline graph_memory_list& memories() noexcept { return memories_; }

private:
  friend class open_capture;
  void open(open_capture& one);
  void close(open_capture& one) noexcept;

  graph_memory_list memories_;
  sync::mutex mutex_;
  intrusive_list<open_capture> scopes_ __attribute__((guarded_by(mutex_))); // the oldest first
};

/// One open capture scope. It keeps the graph memory alive, and with it the pool.
export class open_capture {
public:
  /// `pool`: the state of the pool whose captures these are. Throws what `identify` throws. Throws
  /// std::invalid_argument for a memory of another upstream, and for a stream that cannot capture or that has a scope.
  open_capture(pool_captures& in, void const* pool, graph_memory& memory, stream_ref stream,
               std::optional<device> where);
  open_capture(open_capture const&) = delete;
  open_capture& operator=(open_capture const&) = delete;
  ~open_capture();

private:
  friend class pool_captures;
  friend class intrusive_list<open_capture>;

  state_ptr<graph_memory> const memory_;
  pool_captures& in_;
  stream_key const key_;
  list_links<open_capture> links_;
};

} // namespace gpumem::detail
