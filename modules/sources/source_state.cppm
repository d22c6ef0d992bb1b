// What the sources share: their live blocks, alignment, and frees that wait for the stream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/figures.hpp>
#include <atomic>
#include <cstddef>
#include <map>
#include <optional>
export module gpumem:source_state;
import :cuda;
import :device;
import :error;
import :stream;
import :sync;

namespace gpumem::detail {

// A state that draws each block by a call of its own and gives it back once the host has seen all work enqueued before
// the free. Knows its live blocks, so that misuse is found, and keeps figures. A free on a capturing stream cannot wait
// and cannot be given back: it is kept for the next call outside a capture. No free allocates host memory. Any thread.
class source_state {
public:
  // `natural` is the alignment that draw() gives unasked; above it blocks are over-allocated.
  source_state(char const* name, std::size_t natural) noexcept : name_{name}, natural_{natural} {}
  source_state(source_state const&) = delete;
  source_state& operator=(source_state const&) = delete;

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept;
  figures read_figures() noexcept;

protected:
  ~source_state() = default;

private:
  struct block {
    void* base;
    std::size_t drawn;
    std::size_t bytes;
    std::size_t alignment;
    stream_key freed_on;
  };
  using block_map = std::map<void*, block>; // its nodes move between maps without allocation

  virtual expected<void*, failure> draw(std::size_t bytes, std::size_t alignment) noexcept = 0;
  // False: not now, because of a capture somewhere.
  virtual bool give(void* base, std::size_t alignment) noexcept = 0;
  // The device is gone for good.
  virtual void lose(stream_key const& key, CUresult error) noexcept = 0;

  bool note(void* pointer, block const& given) noexcept;
  block_map::node_type retire(stream_key const& key, void* pointer, std::size_t bytes) noexcept;
  void dispose(stream_key const& key, block_map::node_type leaving) noexcept;
  bool give_behind(stream_key const& key, block const& leaving) noexcept;
  void serve_deferred() noexcept;

  char const* const name_;
  std::size_t const natural_;
  sync::mutex guard_;
  block_map live_;
  block_map deferred_;
  std::atomic<bool> any_deferred_{false};
  figures counts_;
};

// What a driver's refusal of memory means.
failure refusal_of(CUresult error, std::size_t bytes) noexcept;
// Whether the driver refuses a call because of somebody's capture.
bool capture_forbids(CUresult error) noexcept;

} // namespace gpumem::detail
