// The services of a gpumem resource, which go beyond CCCL's concept. CCCL's erased types carry them as a property.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/cccl.hpp>
#include <gpumem/statistics.hpp>
#include <gpumem/outcome.hpp>

#include <cstddef>
#include <typeinfo>

namespace gpumem {
namespace extend {

/// A change of a holder.
enum class holder_event : unsigned char {
  begins,      ///< it was made
  ends,        ///< it is about to be destroyed
  waits,       ///< it begins to wait for something other than memory
  resumes,     ///< it goes on
  rolled_back, ///< it has freed its memory after its request was preempted
};

/// Functions of one resource type over its state. Keys and waiters are opaque here: only the module has their types.
struct services_table {
  /// The type of the resource. If a foreign adaptor forwards this property, the type differs from the adaptor's. The
  /// services are then ignored, since they would bypass the adaptor.
  std::type_info const* type;
  /// Allocates in the order of the stream; the resource identifies it.
  cuda::std::expected<void*, failure> (*try_allocate)(void* state, cuda::stream_ref, std::size_t bytes,
                                                      std::size_t alignment) noexcept;
  /// The same, but gives memory only if no other request waits. Returns null and writes `why` if it gives none;
  /// otherwise writes the stream's key to `key`, a std::optional<stream_key>. Null if the resource is not gpumem's.
  void* (*try_allocate_behind)(void* state, cuda::stream_ref, std::size_t bytes, std::size_t alignment, void* key,
                               failure& why) noexcept;
  /// Allocates for a stream that is identified; `key` is a stream_key.
  cuda::std::expected<void*, failure> (*try_allocate_keyed)(void* state, void const* key, std::size_t bytes,
                                                            std::size_t alignment) noexcept;
  /// Frees in the order of the stream of `key`.
  void (*deallocate_keyed)(void* state, void const* key, void* pointer, std::size_t bytes,
                           std::size_t alignment) noexcept;
  /// Returns the device's ordinal; -1 if the memory belongs to no device.
  int (*device)(void* state) noexcept;
  /// Calls `admit` of the state (see waiting_state). Null if the resource cannot let requests wait.
  bool (*admit)(void* state, void* waiter) noexcept;
  /// Calls `cancel_waiter` of the state. Null if the resource cannot let requests wait.
  bool (*cancel_waiter)(void* state, void* waiter) noexcept;
  /// Tells the resource of a change in the work of a holder. Null if the resource does not use it.
  void (*on_holder_event)(void* state, void* holder, holder_event what) noexcept;
  /// Gives memory beyond `keep` reserved bytes back to the upstream; returns the bytes given back.
  std::size_t (*trim)(void* state, std::size_t keep);
  /// Returns false and writes nothing if the resource keeps no statistics.
  bool (*read_statistics)(void* state, statistics& seen);
  /// Returns the resource's name for messages, which lives as long as the state. Null if it has none.
  char const* (*name)(void* state) noexcept;
};

/// A table with the state it works on; keeps nothing alive.
struct services_handle {
  services_table const* table = nullptr; ///< null: the resource has no services of gpumem
  void* state = nullptr;                 ///< the first argument of the functions
};

/// The stateful property of every gpumem resource.
struct services {
  /// CCCL reads the type of a property here.
  using value_type = services_handle;
};

} // namespace extend

/// An owning, type-erased resource that keeps gpumem's services. Never empty, unless moved from.
using any_pool = cuda::mr::any_resource<cuda::mr::device_accessible, extend::services>;

/// The same without ownership: 16 bytes, no reference count.
using pool_ref = cuda::mr::resource_ref<cuda::mr::device_accessible, extend::services>;

// The module's interface instantiates these and any_memory. They are instantiated here too: for a unit that includes
// CCCL and imports gpumem, clang 19 emits their friend try_get_property only if the unit's headers instantiate them. It
// attaches the friend to the module (llvm-project#126373). Remove both lines when clang >= 20 is required.
static_assert(sizeof(any_pool) > sizeof(pool_ref));
static_assert(sizeof(any_pool) == sizeof(cuda::mr::any_resource<extend::services>));

namespace extend {

/// Returns the services of an erased resource; an empty handle if they belong to another type than the erased one.
template <class Erased> services_handle find_services(Erased const& resource) noexcept {
  services_handle found;
  if constexpr (cuda::has_property<Erased, services>) {
    found = get_property(resource, services{});
  } else if (auto const maybe = try_get_property(resource, services{})) {
    found = *maybe;
  }
#ifndef __CUDA_ARCH__ // nvcc's device pass, which only parses this, has no type_info
  if (!found.table || *found.table->type != resource.type()) return {};
#endif
  return found;
}

} // namespace extend

/// Allocates in stream order from a type-erased resource without throwing. `alignment` must be a power of two. For code
/// that cannot import the module. Any thread.
template <class Erased>
cuda::std::expected<void*, failure> try_allocate_erased(Erased& resource, cuda::stream_ref stream, std::size_t bytes,
                                                        std::size_t alignment = 256) noexcept {
  if (auto const found = extend::find_services(resource); found.table) {
    return found.table->try_allocate(found.state, stream, bytes, alignment);
  }
  try {
    return resource.allocate(stream, bytes, alignment);
  } catch (...) { return cuda::std::unexpected<failure>{failure{outcome::exhausted, 0, bytes}}; }
}

} // namespace gpumem
