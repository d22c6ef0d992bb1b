// The services of a gpumem resource, which go beyond CCCL's concept. CCCL's type-erased resources carry them as a
// property.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/accessibility.hpp>
#include <gpumem/cccl.hpp>
#include <gpumem/statistics.hpp>
#include <gpumem/outcome.hpp>

#include <cstddef>
#include <typeinfo>

namespace gpumem {
namespace extend {

/// A change of a holder.
enum class holder_event : unsigned char {
  begins,      ///< the holder was made
  ends,        ///< the holder is about to be destroyed
  waits,       ///< the holder begins to wait for something other than memory
  resumes,     ///< the wait for something other than memory is over
  rolled_back, ///< the holder has freed its memory after its request was preempted
};

/// Facts about all memory of a resource. If the type of the resource is erased, only the services know this.
struct memory_traits {
  bool device_accessible = false; ///< devices can access the memory
  bool host_accessible = false;   ///< the host can access the memory as soon as it is allocated
  bool stream_ordered = true;     ///< memory is valid only in the order of the stream of its allocation
};

/// The functions of one resource type. `state` is the resource's state. Stream keys and waiters are void pointers here,
/// because only the module has their types.
struct services_table {
  /// The type of the resource. An adaptor of another library may forward the property `services` of its upstream. Its
  /// own type then differs from this type, and the services are ignored, since they would bypass the adaptor.
  std::type_info const* type;
  /// Allocates in the order of the stream. The resource looks up the key of the stream.
  cuda::std::expected<void*, failure> (*try_allocate)(void* state, cuda::stream_ref, std::size_t bytes,
                                                      std::size_t alignment) noexcept;
  /// Allocates in the order of the stream if no other request waits. `attempt` points to an attempt_behind of the
  /// module, to which this writes the stream's key, and the failure if it returns null. This function pointer is null
  /// if the resource is not gpumem's.
  void* (*try_allocate_behind)(void* state, cuda::stream_ref, std::size_t bytes, std::size_t alignment,
                               void* attempt) noexcept;
  /// Allocates in the order of a stream. `key` points to its stream_key.
  cuda::std::expected<void*, failure> (*try_allocate_keyed)(void* state, void const* key, std::size_t bytes,
                                                            std::size_t alignment) noexcept;
  /// Frees in the order of a stream. `key` points to its stream_key.
  void (*deallocate_keyed)(void* state, void const* key, void* pointer, std::size_t bytes,
                           std::size_t alignment) noexcept;
  /// Returns the device's ordinal; -1 if the memory belongs to no device.
  int (*device)(void* state) noexcept;
  /// Passes the request `waiter` to the resource, by `admit` of the state. Returns true if the request now waits there;
  /// false if it has its result already, or ends as exhausted. Null if requests cannot wait in the resource.
  bool (*admit)(void* state, void* waiter) noexcept;
  /// Calls `cancel_waiter` of the state, which ends the wait of the request `waiter`. Returns false if the resource has
  /// already granted or refused the request, or has told it to try again. Null if requests cannot wait in the resource.
  bool (*cancel_waiter)(void* state, void* waiter) noexcept;
  /// Returns whether the request `waiter`, which has not been admitted, is larger than the resource can ever serve.
  /// Null if the resource does not know that.
  bool (*is_too_large)(void* state, void* waiter) noexcept;
  /// Tells the resource of a change of a holder. Null if the resource needs no such calls.
  void (*on_holder_event)(void* state, void* holder, holder_event event) noexcept;
  /// Gives memory beyond `keep` reserved bytes back to the upstream; returns the bytes given back.
  std::size_t (*trim)(void* state, std::size_t keep);
  /// Returns false and writes nothing if the resource keeps no statistics.
  bool (*read_statistics)(void* state, statistics& result);
  /// Returns the resource's name for messages, which lives as long as the state. Null if it has none.
  char const* (*name)(void* state) noexcept;
  /// Returns whether work of a stream may use the resource's memory. `key` points to its stream_key. Null: the resource
  /// knows of no stream whose work may not.
  bool (*serves_stream)(void* state, void const* key) noexcept;
  /// Begins or ends to tell `watcher`, a memory_watcher of the module, of the memory that the resource gets. Returns
  /// whether the resource tells watchers. Null if it does not. Throws std::bad_alloc.
  bool (*watch_memory)(void* state, void* watcher, bool begin);
  /// Returns what holds for the memory, also if the type of an upstream is erased.
  memory_traits (*traits)(void* state) noexcept;
  /// Names a live block in snapshots; `label` is the number of the text. Returns false if the resource does not know
  /// the block. Null if it names no blocks.
  bool (*set_label)(void* state, void const* pointer, unsigned label) noexcept;
  /// Appends to `text`, a std::string, the holders of the memory that a request for `bytes` lacks; for 0 bytes, only
  /// the holders. Null if the resource does not know them. Throws std::bad_alloc.
  void (*append_holders)(void* state, std::size_t bytes, void* text);
};

/// A table with the state on which its functions work. Does not keep the state alive.
struct services_handle {
  services_table const* table = nullptr; ///< null: the resource has no services of gpumem
  void* state = nullptr;                 ///< the first argument of the functions
};

/// The property through which CCCL's type-erased resources give access to gpumem's services.
struct services {
  /// CCCL takes the type of the property's value from here.
  using value_type = services_handle;
};

} // namespace extend

/// An owning, type-erased resource with gpumem's services. It is empty only if it was moved from.
using any_pool = cuda::mr::any_resource<cuda::mr::device_accessible, extend::services>;

/// A type-erased reference to a resource, with gpumem's services. 16 bytes; does not keep the resource alive.
using pool_ref = cuda::mr::resource_ref<cuda::mr::device_accessible, extend::services>;

// Instantiates the classes of any_pool and pool_ref, and in the second line that of the module's any_memory, as the
// module's interface does. Otherwise a file that includes CCCL and imports gpumem lacks their friend try_get_property
// with clang 19: clang attaches that friend to the module (llvm-project#126373). Remove both lines when clang >= 20 is
// required.
static_assert(sizeof(any_pool) > sizeof(pool_ref));
static_assert(sizeof(any_pool) == sizeof(cuda::mr::any_resource<extend::services>));

namespace extend {

/// Returns what a resource of any library tells of its memory. A type-erased resource answers for the value that it
/// holds; an empty one has no traits. `stream_ordered` is true.
template <class Resource> memory_traits traits_by_property(Resource const& resource) noexcept {
  return {detail::devices_can_access(resource), detail::host_can_access(resource), true};
}

/// Returns the services of a type-erased resource. Returns an empty handle if it has none, or if they belong to another
/// type than the one that was erased.
template <class Erased> services_handle find_services(Erased const& resource) noexcept {
  services_handle found;
  if constexpr (cuda::has_property<Erased, services>) {
    found = get_property(resource, services{});
  } else if (auto const maybe = try_get_property(resource, services{})) {
    found = *maybe;
  }
#ifndef __CUDA_ARCH__ // nvcc's device pass only parses this and has no type_info
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
