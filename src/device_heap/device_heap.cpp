// Grows a device_heap, resets it, and reads its statistics.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/device_heap.hpp>
#include <gpumem/pool_options.hpp>

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cuda.h>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
module gpumem.device_heap;

namespace gpumem {

void device_heap::throw_empty() {
  throw std::invalid_argument{"gpumem: device_heap: the heap is empty; was it moved from?"};
}

} // namespace gpumem

namespace gpumem::detail {
namespace {

using heap_detail::slab_bytes;

growable_state& state_of(growable_buffer const& part) { return growable_access::state_of(part); }

// Fills parts of the metadata in the order of a stream.
class filler {
public:
  filler(stream_ref stream, extend::stream_key const& key, heap_view const& heap)
      : work_{stream, device{key.identity().timeline().device()}}, heap_{heap} {}
  void operator()(heap_detail::fill const& part) const {
    work_.fill(heap_.metadata() + part.offset, static_cast<std::byte>(part.value), part.bytes);
  }

private:
  stream_work work_;
  heap_view heap_;
};

} // namespace

heap_state::heap_state(growable_buffer data, growable_buffer metadata, stream_ref stream,
                       device_heap_options const& options)
    : data_{std::move(data)}, metadata_{std::move(metadata)}, reserved_{options.reserve},
      layout_{heap_detail::make_layout(options.reserve)} {
  filler{stream, state_of(data_).identify(stream), view()}(fill_of_begin(layout_));
  publish(stream, options.bytes);
}

void heap_state::begin_growth() {
  throw_if_child();
  sync::lock const held{mutex_};
  ++growths_;
}

// Does nothing in a forked child, and while the process exits.
void heap_state::end_growth(stream_ref stream) noexcept try {
  if (!driver_api::driver_alive()) return;
  {
    sync::lock const held{mutex_};
    --growths_;
  }
  shrink(data_, stream);
  shrink(metadata_, stream);
} catch (...) {} // the pages stay until another growth ends

void heap_state::shrink(growable_buffer const& part, stream_ref stream) {
  std::optional<extend::stream_key> key;
  growable_state::loan_map freed;
  {
    sync::lock const held{mutex_};
    auto const needed = &part == &data_ ? bytes() : metadata_bytes(bytes());
    if (growths_ > 0 || part.bytes() <= needed) return;
    key = state_of(part).identify(stream);
    freed = state_of(part).cut(*key, needed);
  }
  state_of(part).free(*key, freed);
}

void heap_state::publish(stream_ref stream, std::size_t bytes) {
  auto const key = state_of(data_).identify(stream); // throws in a capture, which would record the fills
  sync::lock const held{mutex_};
  auto const old = this->bytes();
  if (bytes <= old) return;
  filler const fill{stream, key, view()};
  for (auto const& each : fills_of_growth(layout_, old / slab_bytes, bytes / slab_bytes)) {
    fill(each);
    // Kernels can use the memory once the first bits of free slabs are set, even if a later fill fails.
    if (each.value != 0) bytes_.store(bytes, std::memory_order_relaxed);
  }
}

expected<void, failure> heap_state::try_grow(stream_ref stream, std::size_t bytes) noexcept try {
  auto const size = size_of_growth(*this, bytes);
  heap_growth const growth{*this, stream};
  if (size <= reserved_) {
    if (auto const grown = metadata_.try_grow_to(stream, metadata_bytes(size)); !grown) return grown;
  }
  if (auto const grown = data_.try_grow_to(stream, size); !grown) return grown;
  publish(stream, size);
  return {};
} catch (...) { return unexpected<failure>{current_failure(bytes)}; }

void heap_state::reset(stream_ref stream) {
  auto const key = state_of(data_).identify(stream, true);
  sync::lock const held{mutex_};
  filler const fill{stream, key, view()};
  fill(fill_of_begin(layout_));
  for (auto const& each : fills_of_growth(layout_, 0, bytes() / slab_bytes)) fill(each);
  for (auto const* const part : {&data_, &metadata_}) state_of(*part).record_stream(key);
}

buffer heap_state::copy_metadata(stream_ref stream, std::size_t& slabs) {
  auto& state = state_of(metadata_);
  auto const key = state.identify(stream);
  sync::lock const held{mutex_};
  // Kernels of this stream have no slab of a growth that another thread makes after this.
  slabs = bytes() / slab_bytes;
  if (!copies_) copies_.emplace(pinned_resource{*state.lender().where()}, pool_options{.name = state.name()});
  buffer copy{stream, *copies_, counted_bytes(layout_, slabs)};
  copy.copy_from(metadata_.data(), copy.size());
  for (auto const* const part : {&data_, &metadata_}) state_of(*part).record_stream(key);
  return copy;
}

task<device_heap_statistics> heap_state::statistics(stream_ref stream, completion_options options) {
  std::size_t slabs = 0;
  auto const copy = copy_metadata(stream, slabs);
  co_await completion(stream, options);
  co_return heap_detail::count_blocks(layout_, static_cast<unsigned char const*>(copy.data()), slabs);
}

} // namespace gpumem::detail
