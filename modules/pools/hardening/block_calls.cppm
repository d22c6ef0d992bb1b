// The calls of a pool that depend on its mode.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_calls;
import :error;
import :free_path;
import :memory_walk;
import :memory_watcher;
import :misuse;
import :pool_engine;
import :pool_reports;
import :range_search;
import :std;
import :stream;
import :sync;

namespace gpumem::detail {

/// The calls that do more in some pools than in the engine. This class passes each call on to the engine; a hardened
/// pool, and one that passes its requests through to its upstream, override them. A plain pool asks the engine itself
/// for blocks. Any thread.
export class block_calls {
public:
  /// Calls `ended(state)` once, after drop_last_handle(), when the last block was freed.
  block_calls(pool_engine& engine, void (*ended)(void* state) noexcept, void* state) noexcept
      : engine_{engine}, ended_{ended}, state_{state} {}
  virtual ~block_calls() = default;

  virtual expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes,
                                                std::size_t alignment) noexcept {
    return engine_.try_allocate(key, bytes, alignment);
  }
  /// If drop_last_handle() was called before, this object can be gone when the call returns.
  virtual void deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
    if (engine_.deallocate(key, pointer, bytes) == free_result::last) end();
  }
  /// Frees a block that a request for several blocks had got before another one was refused.
  virtual void return_part(stream_key const& key, void* pointer, std::size_t /*bytes*/) noexcept {
    engine_.return_part(key, pointer);
  }
  /// Frees blocks to the engine that this object keeps, as far as the request that lacks memory may have them. Returns
  /// whether the engine may have more memory now. Frees can resume coroutines, so the caller holds no lock.
  virtual bool free_kept(stream_key const& /*key*/) noexcept { return false; }
  /// Declares a use of the block. Throws cuda_error, std::bad_alloc.
  virtual void record_use(stream_key const& key, void* pointer) { engine_.record_use(key, pointer); }
  /// Frees blocks to the engine that this object keeps and that no stream uses any more. Returns whether it freed any.
  virtual bool flush() noexcept { return false; }
  /// Waits, at most `longest`, until this object keeps no freed block. Returns whether it keeps none.
  virtual bool synchronize(sync::duration /*longest*/) noexcept { return true; }
  virtual expected<std::size_t, failure> reserve(std::size_t bytes) { return engine_.reserve(bytes); }
  /// Begins or ends to tell the watcher of the pool's memory. Returns whether the pool has memory of its own.
  virtual bool watch_memory(memory_watcher& watcher, bool begin) {
    engine_.watch_memory(watcher, begin);
    return true;
  }

  virtual std::optional<block_info> find(void const* pointer) { return engine_.find(pointer); }
  virtual std::optional<owned_block> find_owned(void const* pointer) { return engine_.find_owned(pointer); }
  virtual live_blocks find_live() { return engine_.find_live(); }
  virtual std::vector<memory_range> memory_map() { return engine_.memory_map(); }
  /// Names a live block; see pool_engine.
  virtual bool set_label(void const* pointer, std::uint32_t label) noexcept {
    return engine_.set_label(pointer, label);
  }
  /// Throws std::bad_alloc.
  virtual memory_copy copy_memory() { return engine_.copy_memory(); }
  virtual std::vector<block_event> history(void const* /*pointer*/) { return {}; }
  virtual void reset_peaks() { engine_.reset_peaks(); }
  virtual statistics read_statistics() { return engine_.read_statistics(); }

  /// Called when no handle of the pool is left. This object can be gone when the call returns.
  virtual void drop_last_handle() noexcept { end(); }

protected:
  // Ends the pool, and this object with it.
  void end() noexcept { ended_(state_); }

  pool_engine& engine_;

private:
  void (*const ended_)(void* state) noexcept;
  void* const state_;
};

} // namespace gpumem::detail
