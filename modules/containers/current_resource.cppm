// The current resource of each device: containers use it if the caller names no resource.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:current_resource;
import :services;
import :device;

namespace gpumem {

/// Returns the device's current resource. At first that is a pool over the device's memory, in virtual pages if the
/// device has them; it is made at first use and lives until the process ends. The handle and its memory stay valid even
/// if another resource is set. Throws cuda_error, std::bad_alloc. Any thread.
export any_pool current_resource(device where = device::current());

/// Sets the device's current resource and returns the one before. Live blocks still belong to the resource from which
/// they came. Throws std::invalid_argument for an empty (moved-from) handle and for memory of another device. Any
/// thread.
export any_pool set_current_resource(device where, any_pool resource);
export any_pool set_current_resource(any_pool resource);

/// Makes the first pool of the device current again and returns the resource before. Any thread.
export any_pool reset_current_resource(device where = device::current());

/// Sets a device's current resource for a scope. Its destructor sets the one before again, even if another was set
/// meanwhile. Scopes of one device must end in the reverse order of their construction. The current resource belongs to
/// the process, not to the thread.
export class [[nodiscard]] scoped_current_resource {
public:
  /// Throws as set_current_resource.
  scoped_current_resource(device where, any_pool resource);
  explicit scoped_current_resource(any_pool resource);
  scoped_current_resource(scoped_current_resource const&) = delete;
  scoped_current_resource& operator=(scoped_current_resource const&) = delete;
  ~scoped_current_resource();

  /// Returns the resource that was current before.
  any_pool const& previous() const noexcept { return previous_; }

private:
  device where_;
  any_pool previous_;
};

} // namespace gpumem
