// The resource of each device that is used where none is named.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:current_resource;
import :services;
import :device;

namespace gpumem {

/// The device's current resource: at first a pool over the device's memory, in virtual pages where the device has them,
/// made at first use and kept for the life of the process. A handle that shares it: it stays valid, and its memory too,
/// whatever is set afterwards. Throws cuda_error, std::bad_alloc. Any thread.
export any_pool current_resource(device where = device::current());

/// Makes it the device's current resource and returns the one before; memory already given out stays with whom it came
/// from. Throws std::invalid_argument for an empty handle (one moved from) and for memory of another device. Any
/// thread.
export any_pool set_current_resource(device where, any_pool resource);
export any_pool set_current_resource(any_pool resource);

/// Makes the pool that was there at first the current resource again and returns the one before. Any thread.
export any_pool reset_current_resource(device where = device::current());

/// Sets a device's current resource for a scope; at its end the one before is current again, whatever was set
/// meanwhile. Scopes of one device end in the reverse order of their beginning. The device's resource is the whole
/// process's, not the thread's.
export class scoped_current_resource {
public:
  /// As set_current_resource.
  scoped_current_resource(device where, any_pool resource);
  explicit scoped_current_resource(any_pool resource);
  scoped_current_resource(scoped_current_resource const&) = delete;
  scoped_current_resource& operator=(scoped_current_resource const&) = delete;
  ~scoped_current_resource();

  /// The resource that was current before.
  any_pool const& previous() const noexcept { return previous_; }

private:
  device where_;
  any_pool previous_;
};

} // namespace gpumem
