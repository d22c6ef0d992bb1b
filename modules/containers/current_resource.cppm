// The current resource of each device: containers allocate from it if the caller names no resource.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:current_resource;
import :device;
import :services;

namespace gpumem {

/// Returns the device's current resource. At first it is a pool over the device's memory. If the device supports it,
/// the pool maps memory page by page at reserved addresses; otherwise it allocates whole chunks. That pool is made at
/// first use and lives until the process ends. The returned handle and its memory stay valid after another resource is
/// set. Throws cuda_error, std::bad_alloc. Any thread.
export any_pool current_resource(device home = device::current());

/// Sets the device's current resource and returns the previous one. Live blocks still belong to the resource from which
/// they came. Throws std::invalid_argument for a handle that was moved from, and for memory of another device. The
/// second form sets the current resource of the current device. Any thread.
export any_pool set_current_resource(device device, any_pool resource);
export any_pool set_current_resource(any_pool resource);

/// Makes the device's initial pool current again and returns the previous resource. Any thread.
export any_pool reset_current_resource(device home = device::current());

/// Sets a device's current resource until the destructor sets the previous one again, even if another one was set
/// meanwhile. If several of these objects are live for one device, they must be destroyed in the reverse order of their
/// construction. The current resource belongs to the process, not to the thread.
export class [[nodiscard]] scoped_current_resource {
public:
  /// Sets the resource, for the current device if `device` is left out. Throws what set_current_resource() throws.
  scoped_current_resource(device device, any_pool resource);
  explicit scoped_current_resource(any_pool resource);
  scoped_current_resource(scoped_current_resource const&) = delete;
  scoped_current_resource& operator=(scoped_current_resource const&) = delete;
  ~scoped_current_resource();

  /// Returns the resource that was current before.
  any_pool const& previous() const noexcept { return previous_; }

private:
  device device_;
  any_pool previous_;
};

} // namespace gpumem
