// Pools of the C ABI over resources of the module. Include it after `import gpumem;`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/lock_attributes.hpp>
#include "graph_memory.hpp"
#include "growable.hpp"
#include "pool.hpp"

#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../support/guarded_mutex.hpp"

namespace gpumem::c {

/// Allocates by a request that waits for at most `longest`. Throws what gpumem::acquire throws.
template <class R>
void* acquire_from(R& resource, stream_ref stream, std::size_t bytes, std::size_t alignment,
                   std::chrono::nanoseconds longest) {
  acquire_options options;
  options.alignment = alignment;
  auto const now = std::chrono::steady_clock::now();
  if (longest < options.deadline - now) options.deadline = now + longest;
  return sync_wait(gpumem::acquire(resource, stream, bytes, options)).release();
}

/// Allocates for a stream; `key` points to its stream_key. Returns null if there is no memory.
template <class R>
void* try_allocate_keyed(R& resource, void const* key, std::size_t bytes, std::size_t alignment) noexcept {
  auto const from = extend::services_of(resource);
  auto const made = from.table->try_allocate_keyed(from.state, key, bytes, alignment);
  return made ? *made : nullptr;
}

inline void visit_map(std::vector<memory_range> const& map, std::function<void(gpumem_range const&)> const& visit) {
  for (auto const& one : map)
    visit(
        {sizeof(gpumem_range), one.base, one.bytes, one.requested, one.stream, one.live, one.region, one.region_bytes});
}

/// Writes a snapshot of the copy. Throws std::invalid_argument if the file cannot be written.
void write_snapshot(detail::memory_copy copy, std::string name, int device, snapshot_file const& file);
/// Returns a copy that has only these ranges.
detail::memory_copy copy_of(std::vector<memory_range> const& map);

/// Returns the key for a free in the order of the stream for which the block was allocated. That stream still lives, so
/// the free can use its handle: perhaps no later call gets it. Only a default stream of another thread has none.
inline extend::stream_key key_of_owner(extend::stream_key const& stream) noexcept {
  auto& timeline = stream.identity().timeline();
  return timeline.is_mortal() ? extend::stream_key::at_end_of(timeline, timeline.handle()) : stream.by_identity();
}

/// A pool of the C ABI over a resource that knows its own blocks.
template <class R> class held_pool : public gpumem_pool {
public:
  held_pool(int ordinal, R resource) : ordinal_{ordinal}, resource_{std::move(resource)} {}

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
    return resource_.allocate(stream, bytes, alignment);
  }
  void free(stream_ref stream, void* pointer, std::optional<std::size_t> bytes) override {
    bytes ? resource_.deallocate(stream, pointer, *bytes) : resource_.deallocate(stream, pointer);
  }
  void* try_allocate_keyed(void const* key, std::size_t bytes, std::size_t alignment) noexcept override {
    return c::try_allocate_keyed(resource_, key, bytes, alignment);
  }
  std::optional<std::size_t> try_free(void* pointer) override { return resource_.try_deallocate(pointer); }
  std::optional<owned_block> find_owned(void const* pointer) override {
    auto const found = resource_.find_owned(pointer);
    return found ? std::optional{owned_block{found->bytes, found->stream->handle(), found->capture}} : std::nullopt;
  }
  void* acquire(stream_ref stream, std::size_t bytes, std::size_t alignment,
                std::chrono::nanoseconds longest) override {
    return acquire_from(resource_, stream, bytes, alignment, longest);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) override {
    return resource_.allocate_sync(bytes, alignment);
  }
  void free_sync(void* pointer, std::size_t bytes) override { resource_.deallocate_sync(pointer, bytes); }
  void record_use(void* pointer, stream_ref stream) override { resource_.record_use(pointer, stream); }
  bool synchronize(std::chrono::nanoseconds longest) override {
    if constexpr (has_limit) return resource_.synchronize(longest);
    return true;
  }
  std::size_t trim(std::size_t keep) override { return resource_.trim(keep); }
  void reserve(std::size_t bytes) override {
    if constexpr (has_limit) resource_.reserve(bytes);
  }
  void set_limit(std::size_t bytes) override {
    if constexpr (has_limit) resource_.set_limit(bytes);
  }
  bool add_outside(std::size_t bytes) override {
    if constexpr (has_limit) return resource_.add_outside(bytes);
    return true;
  }
  void remove_outside(std::size_t bytes) override {
    if constexpr (has_limit) resource_.remove_outside(bytes);
  }
  void reset_peaks() override { resource_.reset_peaks(); }
  void open_to(int device) override {
    if constexpr (has_limit) resource_.open_to(gpumem::device{device});
  }
  exported_page export_page(void const* pointer) override {
    if constexpr (has_limit) {
      auto const made = resource_.export_page(pointer);
      return {made.descriptor, made.base, made.bytes};
    }
    throw std::invalid_argument{"gpumem: graph memory has no pages of its own"};
  }
  void unpin(void const* pointer, std::size_t bytes) noexcept override {
    if constexpr (has_limit) resource_.unpin(pointer, bytes);
  }
  int device() override { return ordinal_; }
  gpumem::statistics statistics() override { return resource_.statistics(); }
  found_block find(void const* pointer) override {
    auto const found = resource_.find(pointer);
    return found ? found_block{found->base, found->bytes, found->allocated, found->stream, found->live} : found_block{};
  }

  void visit_ranges(std::function<void(gpumem_range const&)> const& visit) override {
    visit_map(resource_.memory_map(), visit);
  }
  void set_label(void const* pointer, std::string_view label) override {
    if constexpr (has_limit) {
      if (resource_.set_label(pointer, label)) return;
      throw std::invalid_argument{"gpumem: no live block of the pool begins at this address"};
    }
    throw std::invalid_argument{"gpumem: graph memory names no blocks"};
  }
  void write_snapshot(snapshot_file const& file) override {
    auto const from = extend::services_of(resource_);
    auto* const name = from.table->name(from.state);
    if constexpr (has_limit) {
      c::write_snapshot(resource_.copy_memory(), name, ordinal_, file);
    } else {
      auto copy = copy_of(resource_.memory_map());
      copy.statistics = resource_.statistics();
      c::write_snapshot(std::move(copy), name, ordinal_, file);
    }
  }
  gpumem_growable* make_growable(stream_ref stream, std::string_view options) override {
    if constexpr (has_limit) return c::make_growable(extend::services_of(resource_), stream, options);
    throw std::invalid_argument{"gpumem: graph memory lends no pages"};
  }
  gpumem_graph_memory* make_graph_memory() override {
    if constexpr (has_limit) return new held_graph_memory<R>{resource_};
    throw std::invalid_argument{"gpumem: graph memory gives none out for other captures"};
  }
  void restore(std::span<gpumem_range const> live) override {
    if constexpr (requires { resource_.restore({}); }) {
      std::vector<memory_range> ranges;
      for (auto const& one : live)
        ranges.push_back({one.base, one.bytes, one.requested, one.stream, one.live != 0, one.region, one.region_bytes});
      resource_.restore(ranges);
    } else {
      throw std::invalid_argument{"gpumem: only graph memory can be restored"};
    }
  }
  any_pool resource() override { return resource_; }

protected:
  R& held() noexcept { return resource_; }

private:
  // False for graph_resource (the memory of captured graphs), because it has no limit of its own.
  static constexpr bool has_limit = requires(R& resource, std::size_t n) { resource.set_limit(n); };

  int ordinal_;
  R resource_;
};

/// A pool of the C ABI over a resource that knows its own blocks, below adaptors that change no request. Calls for
/// blocks go through the adaptors; all others go to the resource.
template <class R> class watched_pool final : public held_pool<R> {
  using base = held_pool<R>;

public:
  /// `outer` is the outermost adaptor over the resource.
  watched_pool(int ordinal, R resource, any_pool outer)
      : base{ordinal, std::move(resource)}, outer_{std::move(outer)}, calls_{extend::services_of(outer_)} {}

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
    return outer_.allocate(stream, bytes, alignment);
  }
  void free(stream_ref stream, void* pointer, std::optional<std::size_t> bytes) override {
    if (!pointer || !driver_api::driver_alive()) return;
    if (!bytes) bytes = this->held().bytes_of(pointer);
    if (!bytes) return base::free(stream, pointer, bytes); // the pool reports the misuse
    outer_.deallocate(stream, pointer, *bytes, GPUMEM_ALIGNMENT);
  }
  void* try_allocate_keyed(void const* key, std::size_t bytes, std::size_t alignment) noexcept override {
    auto const made = calls_.table->try_allocate_keyed(calls_.state, key, bytes, alignment);
    return made ? *made : nullptr;
  }
  std::optional<std::size_t> try_free(void* pointer) override {
    auto const found = driver_api::driver_alive() ? this->held().find_owned(pointer) : std::nullopt;
    if (!found) return std::nullopt;
    auto const key = key_of_owner(extend::stream_key::of(*found->stream, found->stream->handle()));
    calls_.table->deallocate_keyed(calls_.state, &key, pointer, found->bytes, GPUMEM_ALIGNMENT);
    return found->bytes;
  }
  void* acquire(stream_ref stream, std::size_t bytes, std::size_t alignment,
                std::chrono::nanoseconds longest) override {
    return acquire_from(outer_, stream, bytes, alignment, longest);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) override {
    return outer_.allocate_sync(bytes, alignment);
  }
  void free_sync(void* pointer, std::size_t bytes) override {
    outer_.deallocate_sync(pointer, bytes, GPUMEM_ALIGNMENT);
  }
  void set_label(void const* pointer, std::string_view label) override {
    if (calls_.table->set_label(calls_.state, pointer, detail::label_number(label))) return;
    throw std::invalid_argument{"gpumem: no live block of the pool begins at this address"};
  }
  any_pool resource() override { return outer_; }

private:
  any_pool outer_;
  extend::services_handle const calls_; // of the adaptor in `outer_`
};

/// Functions of the pools and sources inside a stack, for calls that concern all of them.
struct stack_parts {
  std::vector<std::function<bool(std::chrono::nanoseconds)>> synchronize;
  std::vector<std::function<void()>> reset_peaks;
};

/// A pool of the C ABI over a stack of resources. The outermost resource does not know its blocks, so this class
/// records them. A use on another stream is recorded as an event. The stream of the free waits for that event.
class recorded_pool final : public gpumem_pool {
public:
  recorded_pool(int ordinal, any_pool resource, stack_parts parts = {})
      : device_{ordinal}, resource_{std::move(resource)}, parts_{std::move(parts)} {}

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) override;
  void free(stream_ref stream, void* pointer, std::optional<std::size_t> bytes) override;
  void* try_allocate_keyed(void const* key, std::size_t bytes, std::size_t alignment) noexcept override;
  std::optional<std::size_t> try_free(void* pointer) override;
  std::optional<owned_block> find_owned(void const* pointer) override;
  void* acquire(stream_ref stream, std::size_t bytes, std::size_t alignment, std::chrono::nanoseconds longest) override;
  void* allocate_sync(std::size_t bytes, std::size_t alignment) override;
  void free_sync(void* pointer, std::size_t bytes) override;
  void record_use(void* pointer, stream_ref stream) override;
  bool synchronize(std::chrono::nanoseconds longest) override;
  void reset_peaks() override;
  /// The next three functions, visit_ranges(), write_snapshot(), make_growable(), make_graph_memory() and restore()
  /// throw std::invalid_argument: only a pool supports them.
  void reserve(std::size_t bytes) override;
  void set_limit(std::size_t bytes) override;
  bool add_outside(std::size_t) override { return true; }
  void remove_outside(std::size_t) override {}
  exported_page export_page(void const* pointer) override;
  void unpin(void const*, std::size_t) noexcept override {}
  void open_to(int) override {} // the resources of the stack decide which devices may use their memory
  int device() override { return device_.ordinal(); }
  std::size_t trim(std::size_t keep) override { return gpumem::trim(resource_, keep); }
  /// Throws std::invalid_argument if the outermost resource keeps no statistics.
  gpumem::statistics statistics() override;
  found_block find(void const* pointer) override;
  void visit_ranges(std::function<void(gpumem_range const&)> const& visit) override;
  void set_label(void const* pointer, std::string_view label) override;
  void write_snapshot(snapshot_file const&) override;
  gpumem_growable* make_growable(stream_ref, std::string_view) override;
  gpumem_graph_memory* make_graph_memory() override;
  void restore(std::span<gpumem_range const>) override;
  any_pool resource() override { return resource_; }

private:
  struct record {
    std::size_t bytes;
    extend::stream_key stream;
    std::vector<event> uses;
  };
  using records = std::map<void const*, record, std::greater<>>;

  void* keep(void* pointer, stream_ref stream, std::size_t bytes, std::size_t alignment);
  void* keep(void* pointer, record block);
  records::node_type take(void* pointer, std::optional<std::size_t> bytes);
  template <class Free> void free_taken(records::node_type block, Free free);

  gpumem::device device_;
  any_pool resource_;
  stack_parts const parts_;
  support::guarded_mutex mutex_;
  records live_ GPUMEM_GUARDED_BY(mutex_);
  std::size_t live_bytes_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::size_t peak_live_ GPUMEM_GUARDED_BY(mutex_) = 0; // some resources of a stack know no peak
};

} // namespace gpumem::c
