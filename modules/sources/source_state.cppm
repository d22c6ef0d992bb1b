// source_state, the base of the states of all resources without an upstream. Aligns blocks, records the live ones, and
// keeps deferred frees.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/statistics.hpp>
#include <iterator>
#include <map>
export module gpumem:source_state;
import :cuda;
import :device;
import :error;
import :std;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

// Returns whether the handle is CU_STREAM_LEGACY or CU_STREAM_PER_THREAD, which mean a different stream in each
// context.
bool is_default_handle(CUstream handle) noexcept;
// Returns success if the stream does not capture, otherwise an error.
CUresult refuse_capture(stream_key const& key, CUstream handle) noexcept;

// Base of the states that get each block by a call of its own, and free it after all work enqueued before the free. The
// host waits for that work, unless a derived class overrides free_in_order(). The key that a call gets names a stream,
// or the host. Live blocks are recorded, to detect misuse and for the statistics. Any thread.
//
// A free on a capturing stream cannot wait for the stream, so it is deferred to the next call outside a capture. A free
// on another thread's default stream is deferred until an event of that stream is complete. No free allocates host
// memory.
class source_state {
public:
  // `natural`: the alignment that allocate_memory() gives to all blocks. For larger alignments a block gets more bytes.
  source_state(char const* name, std::size_t natural) noexcept : name_{name}, natural_{natural} {}
  source_state(source_state const&) = delete;
  source_state& operator=(source_state const&) = delete;

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  // Returns false if it reported a misuse and freed nothing.
  bool deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept;
  statistics read_statistics() noexcept;
  char const* resource_name() const noexcept { return name_; }

protected:
  ~source_state() = default;
  void reset_peak_live() noexcept GPUMEM_EXCLUDES(mutex_);

  struct block {
    void* base;
    std::size_t allocated;
    std::size_t bytes;
    std::size_t alignment;
    stream_key freed_on;
    epoch freed_at = 0;
  };
  using block_map = std::map<void*, block>; // its nodes move between maps, which allocates nothing

  // Waits on the host for the stream and frees the block. If the stream's handle may not be used, polls the stream's
  // events instead of waiting. Returns false if the block cannot be freed yet.
  bool free_after_wait(stream_key const& key, block const& returned) noexcept;

  // Tries the deferred frees for which may_free_inside() returns true; in this class it always does. `now` is the key
  // of the call that tries them.
  void run_deferred_frees(stream_key const& now) noexcept GPUMEM_EXCLUDES(mutex_);

  // Removes and returns the deferred frees on the streams for which `which(stream_key)` is true. The caller passes each
  // of them to end_free().
  template <class Which> block_map take_deferred(Which predicate) noexcept GPUMEM_EXCLUDES(mutex_) {
    sync::lock const lock{mutex_};
    block_map taken;
    for (auto at = deferred_.begin(); at != deferred_.end();) {
      auto const next = std::next(at);
      if (predicate(at->second.freed_on)) taken.insert(deferred_.extract(at));
      at = next;
    }
    any_deferred_.store(!deferred_.empty(), std::memory_order_relaxed);
    return taken;
  }
  // `gone`: the block was freed, so it is forgotten. Otherwise its free is deferred.
  void end_free(stream_key const& key, block_map::node_type returned, bool gone) noexcept GPUMEM_EXCLUDES(mutex_);

private:
  // Returns memory that work enqueued on the stream from now on may use. For the host's key, all streams and the host
  // may use it immediately.
  virtual expected<void*, failure> allocate_memory(stream_key const& key, std::size_t bytes,
                                                   std::size_t alignment) noexcept = 0;
  // Frees a block that no work uses any more. Returns false if a capture forbids that now.
  virtual bool free_memory(block const& returned) noexcept = 0;
  // Frees a block after the work enqueued on the stream so far. Returns false if that is not possible yet.
  virtual bool free_in_order(stream_key const& key, block const& returned) noexcept {
    return free_after_wait(key, returned);
  }
  // Called with the same key after free_in_order() has freed a block.
  virtual void freed_in_order(stream_key const&) noexcept {}
  // Returns whether a call on the second stream may try a deferred free on the first stream.
  virtual bool may_free_inside(stream_key const&, stream_key const&) const noexcept { return true; }
  // Called when the driver has reported an error after which the device cannot be used.
  virtual void mark_lost(stream_key const& key, CUresult error) noexcept = 0;

  bool track_live(void* pointer, block const& block) noexcept GPUMEM_EXCLUDES(mutex_);
  block_map::node_type retire(stream_key const& key, void* pointer, std::size_t bytes) noexcept GPUMEM_EXCLUDES(mutex_);
  void dispose(stream_key const& key, block_map::node_type returned) noexcept GPUMEM_EXCLUDES(mutex_);

  char const* const name_;
  std::size_t const natural_;
  sync::mutex mutex_;
  block_map live_ GPUMEM_GUARDED_BY(mutex_);
  block_map deferred_ GPUMEM_GUARDED_BY(mutex_);
  std::atomic<bool> any_deferred_{false};
  statistics counts_ GPUMEM_GUARDED_BY(mutex_);
};

// Returns a handle that names the key's stream on any thread. Returns none for the host. Returns none for a stream that
// gpumem neither made nor adopted if the current call did not get its handle: the stream may have been destroyed.
std::optional<CUstream> usable_handle(stream_key const& key) noexcept;

// Makes a driver call on the key's stream and returns its result. If the stream captures, does not make the call and
// returns an error of capture. `handle` is the result of usable_handle(). The handle of a default stream depends on the
// current context, so the context of that stream is made current.
template <class Call> CUresult call_on_stream(stream_key const& key, CUstream handle, Call call) noexcept {
  bool const by_context = is_default_handle(handle);
  context_guard const context_scope{by_context ? key.identity().timeline().context() : nullptr};
  if (context_scope.result() != CUDA_SUCCESS) return context_scope.result();
  auto const result = refuse_capture(key, handle);
  return result == CUDA_SUCCESS ? call() : result;
}

// Converts the error of a failed driver call into a failure.
failure refusal_of(CUresult error, std::size_t bytes) noexcept;
// Returns whether the error says that a graph capture forbids the call.
bool capture_forbids(CUresult error) noexcept;

} // namespace gpumem::detail
