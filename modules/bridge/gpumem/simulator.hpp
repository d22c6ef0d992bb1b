// Interface to the simulated device: loads it in place of the CUDA driver, controls it, and reads its findings.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/accessibility.hpp>
#include <gpumem/cccl.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda.h>

namespace gpumem::extend {
struct services;
}

namespace gpumem::simulator {

/// Thrown by the control functions: the library is missing, the process has a real driver, or the call was refused.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// When the simulated device runs enqueued operations. `automatic`: each driver call lets it run a random number of
/// operations. `immediate`: each driver call first lets it run all operations that can run, so that results do not
/// depend on the host's speed. `manual`: it runs only in step(), run_until_idle() and host calls that wait.
enum class stepping { automatic, manual, immediate };

/// Options of the simulated device.
struct options {
  int devices = 1;                              ///< number of devices
  std::size_t capacity = std::size_t{80} << 30; ///< bytes per device; only used bytes take memory of the host
  std::uint64_t seed = 1;                       ///< seed of the random order in which operations run
  stepping mode = stepping::automatic;          ///< when the device runs
  /// How long a blocked host call waits for other threads before it fails, in time of the host. With stepping::manual
  /// no work runs by itself. If queries of events and streams then see no progress for this time, the device says so on
  /// stderr, once.
  std::chrono::milliseconds stall_timeout{10'000};
  bool virtual_memory = true;   ///< false: devices without virtual memory management (cuMemAddressReserve, cuMemMap, …)
  bool pageable_memory = false; ///< true: devices that can access all memory of the host, as by HMM or ATS
  bool concurrent_managed_access = true; ///< false: devices to which managed memory cannot be prefetched
  /// true: a destroy of a driver pool whose frees are complete is a finding too, unless the host has waited for them
  /// (`early_pool_destroy`). CUDA allows it, but driver 580 crashes at times.
  bool strict_pool_destroy = false;
  /// false: reset() also ends all streams, events, memory, driver pools and graphs. The handles that gpumem keeps then
  /// mean nothing, so this is for programs that use the driver alone.
  bool keep_objects = true;
  /// Names the findings from here to the next reset(), for example by the test that runs. Findings that are not taken
  /// are printed with it when the process ends. Empty: "part 1", "part 2", …, counted by resets.
  std::string name = {};
  /// The most addresses that cuMemAddressReserve gives this process, in bytes, as under `ulimit -v`; 0: all that the
  /// host has.
  std::size_t addresses = 0;
};

/// Makes the simulated device the driver of this process. Call it before the first CUDA call; later calls do nothing.
/// Throws `error` if a real driver is loaded, or if the library is not found. If the library was preloaded, that one is
/// used. Otherwise it is searched at GPUMEM_SIMULATOR_LIBRARY, beside the program, in ../lib, and where it was built or
/// installed.
void load(options const& options = {});

/// Returns whether load() has succeeded in this process.
[[nodiscard]] bool loaded() noexcept;

/// Returns whether this machine has a device, judged by its device files. Loads no driver.
[[nodiscard]] bool available_real_device();

/// Calls load() if there is no real device. Returns whether the simulated device is in use.
bool auto_load(options const& options = {});

/// Begins a new test in the same process: sets new options and a new random sequence, and removes all faults and
/// counts. Pending work is dropped and counts as complete; a capture that is open ends. Findings that were not taken
/// are kept for the end of the process; then they are printed, and the process fails.
///
/// Streams, events, memory, driver pools and graphs that the program still holds stay valid: gpumem keeps some until
/// the process ends. Memory counts against the new capacity. After sticky_error() gpumem can use its devices again;
/// after a reset of a context by the driver (cuDevicePrimaryCtxReset) it cannot. Devices beyond the new number are
/// hidden. Throws `error` if a host call waits or device work runs on another thread.
void reset(options const& options = {});

/// Runs all work, makes the host see that it is complete, and restarts the random sequence with the seed `number`.
void seed(std::uint64_t number);

/// Runs at most `operations` operations. Returns how many have run.
std::uint64_t step(std::uint64_t operations = 1);

/// Runs operations until none can run. Returns how many still wait.
std::uint64_t run_until_idle();

/// Makes the `nth` allocation from now on (1 is the next) fail as out of memory, whichever kind of memory it is for.
void fail_allocation(std::uint64_t nth);

/// Makes the `nth` call from now on (1 is the next; 0 has no effect) of the driver function `name`, without version
/// suffix, return `result`.
void fail_call(std::string const& name, std::uint64_t nth, CUresult result);

/// Makes every driver call fail with `result` until the device is reset, by the driver or by reset().
void sticky_error(CUresult result);

/// Makes the event's pending record never complete, or its next record if none is pending. The stream of that record
/// does not go beyond it.
void never_complete(CUevent event);

/// Bytes that a piece of work reads or writes.
struct touch {
  void const* pointer; ///< first byte
  std::size_t bytes;   ///< number of bytes
  bool writes;         ///< true: writes; false: reads
};
/// Returns the declaration that work reads the bytes.
[[nodiscard]] inline touch read(void const* pointer, std::size_t bytes) noexcept { return {pointer, bytes, false}; }
/// Returns the declaration that work writes the bytes.
[[nodiscard]] inline touch write(void const* pointer, std::size_t bytes) noexcept { return {pointer, bytes, true}; }

/// Enqueues device work on `stream`. The work touches the declared bytes and takes `duration` of simulated time, 0 to a
/// year. When the device reaches the work, `function` runs on the thread that lets the device run. It must not throw
/// and must not call the driver.
void work(cuda::stream_ref stream, std::initializer_list<touch> touches, std::chrono::nanoseconds duration = {},
          std::function<void()> function = {});
void work(cuda::stream_ref stream, std::vector<touch> const& touches, std::chrono::nanoseconds duration = {},
          std::function<void()> function = {});

/// The errors that the simulated device finds.
enum class finding_kind {
  unordered_access,           ///< work on two streams touches the same bytes, and no order makes that safe
  unordered_reuse,            ///< memory was granted again without an order after its last use
  unordered_free,             ///< a block was freed without an order after a use on another stream
  use_after_free,             ///< work touches a block that was freed before
  unallocated_access,         ///< work touches bytes that no allocation holds
  double_free,                ///< a block was freed twice
  unknown_free,               ///< no block starts at the freed address
  wrong_size,                 ///< the size passed to the free is not that of the allocation
  overlapping_grant,          ///< a resource granted the same bytes twice
  live_block_in_freed_memory, ///< memory went back to the driver with a live block in it
  dead_stream,                ///< a stream handle was used after its stream was destroyed
  dead_event,                 ///< an event handle was used after its event was destroyed
  call_in_host_function,      ///< a host function called the driver
  deadlock,                   ///< nothing can run any more, and a host call waits
  unmapped_access,            ///< work touches reserved addresses at which nothing is mapped
  access_without_right,       ///< work touches mapped bytes that its device may not access, or may only read
  premature_unmap,    ///< a mapping, or the access to it, was removed before the host had seen a use of it complete
  dead_memory_handle, ///< a handle of physical memory was used after its release
  early_pool_destroy, ///< a memory pool was destroyed while frees to it were pending; see strict_pool_destroy
};
/// Returns the name of the enumerator.
[[nodiscard]] char const* to_string(finding_kind kind) noexcept;

/// One side of a finding: an action of a stream or of the host.
struct party {
  std::uint64_t stream = 0;    ///< id that cuStreamGetId returns; 0: the host
  std::uint64_t operation = 0; ///< number of the operation, counted from 1 on each stream
  std::string action;          ///< the action in words
};

/// An error that was found.
struct finding {
  finding_kind kind;               ///< kind of the error
  party earlier;                   ///< the side that came first
  party later;                     ///< the side whose action was found to break the order
  std::uint64_t block_address = 0; ///< address of the block, or of the first of several pages; 0 if there is neither
  std::uint64_t block_bytes = 0;   ///< bytes of the block, or of all pages
  std::uint64_t block_number = 0;  ///< number of the allocation of the block or first page, counted since the reset
  std::string missing;             ///< the order that is missing, in words
  std::string text;                ///< the whole finding as a sentence
};

/// The findings and counts since the last reset.
struct summary {
  std::vector<finding> findings;                     ///< all findings that were not taken yet
  std::map<std::string, std::uint64_t> driver_calls; ///< number of calls by function name, without version suffix
  std::uint64_t operations_run = 0;                  ///< number of operations that have run
  std::uint64_t operations_pending = 0;              ///< number of operations that have not run yet
  std::uint64_t streams_created = 0;                 ///< number of streams that were created
  std::uint64_t streams_alive = 0; ///< streams that exist now or have work, with the default streams of all threads
  std::uint64_t stream_handles_recycled = 0;   ///< number of these that got the handle of a destroyed stream
  std::uint64_t event_handles_recycled = 0;    ///< number of events that got the handle of a destroyed event
  std::uint64_t implicit_synchronizations = 0; ///< number of frees for which the driver waited for the device
  std::uint64_t bytes_allocated = 0;           ///< bytes of device memory that are allocated now
  std::uint64_t bytes_reserved = 0;            ///< bytes of addresses that are reserved for virtual memory now
  std::uint64_t mappings = 0;                  ///< number of mappings at reserved addresses now
};

/// Returns the findings and counts since the last reset. Findings stay until they are taken.
[[nodiscard]] summary report();

/// Sets the counts of driver calls to 0.
void clear_driver_calls();

/// Returns the findings and forgets them. If findings are never taken, they are printed when the process exits, and an
/// exit status of success becomes EXIT_FAILURE.
std::vector<finding> take_findings();

/// Throws `error` with the texts of all findings, if there are any.
void expect_silent();

/// Sets two functions of a test that decides itself which of its threads runs. Both get `context`. `on_call` runs at
/// each driver call, without any lock. `on_block` runs when a host call cannot go on: it lets other threads run, and
/// returns false if none can run.
void set_schedule_hooks(void (*on_call)(void*), bool (*on_block)(void*), void* context);

namespace detail {
std::uint64_t new_owner() noexcept;
void allocated(std::uint64_t owner, CUstream stream, bool by_host, void* pointer, std::size_t bytes) noexcept;
void freed(std::uint64_t owner, CUstream stream, bool by_host, void* pointer, std::size_t bytes) noexcept;
void use_recorded(CUstream stream, void* pointer) noexcept;

/// Tells the simulated device of the blocks of a `checked` resource and its copies. If the host can access the memory,
/// each allocation counts as made by the host.
class block_teller {
public:
  template <class Resource> static block_teller of(Resource const& resource) noexcept {
    return block_teller{gpumem::detail::host_can_access(resource)};
  }
  void granted(CUstream stream, bool by_host, void* pointer, std::size_t bytes) const noexcept {
    if (pointer != nullptr && bytes != 0) allocated(owner_, stream, by_host || for_host_, pointer, bytes);
  }
  /// `bytes`: 0 if the caller does not know them.
  void freed(CUstream stream, bool by_host, void* pointer, std::size_t bytes) const noexcept {
    if (pointer != nullptr) detail::freed(owner_, stream, by_host, pointer, bytes);
  }
  [[nodiscard]] bool operator==(block_teller const& other) const noexcept { return owner_ == other.owner_; }

private:
  explicit block_teller(bool for_host) noexcept : for_host_(for_host) {}
  std::uint64_t owner_ = new_owner();
  bool for_host_;
};

/// A resource of gpumem whose type is not erased.
template <class Resource>
concept gpumem_resource = requires(Resource& r) {
  typename Resource::state_type;
  r.services();
};

template <bool Device, bool Host>
using list_of = std::conditional_t<
    Device && Host, cuda::mr::properties_list<cuda::mr::device_accessible, cuda::mr::host_accessible>,
    std::conditional_t<
        Device, cuda::mr::properties_list<cuda::mr::device_accessible>,
        std::conditional_t<Host, cuda::mr::properties_list<cuda::mr::host_accessible>, cuda::mr::properties_list<>>>>;
template <class Resource>
using accessible_list = list_of<cuda::has_property<Resource, cuda::mr::device_accessible>,
                                cuda::has_property<Resource, cuda::mr::host_accessible>>;

// Only the module declares observed_base_of(). Argument-dependent lookup finds it in the namespace of a base class of
// the module's resources.
template <class Self, class Resource>
using checked_base = decltype(observed_base_of(std::type_identity<Self>{}, std::declval<Resource const&>(),
                                               std::declval<block_teller const&>()));
} // namespace detail

/// An adaptor that reports each allocation and free of the wrapped resource to the simulated device. Each report counts
/// as a write of the whole block at that point of the stream. It counts as a write by the host for allocate_sync,
/// deallocate_sync, and each allocation of memory that the host can access. Copies compare equal; objects that were
/// made separately do not. Without the simulated device the adaptor only forwards.
///
/// Over a resource of gpumem whose type is not erased, the adaptor forwards `acquire`: requests wait where that
/// resource lets them wait. Over an erased resource, or one of another library, requests do not wait, and the
/// member `acquire` does not compile. A move of such an adaptor is a copy, if the resource can be copied.
template <class Resource> class checked {
public:
  /// The properties that containers of CCCL use if the caller names none.
  using default_queries = detail::accessible_list<Resource>;

  /// Wraps the resource. Throws std::invalid_argument if it is type-erased and empty.
  explicit checked(Resource resource) : resource_(std::move(resource)), teller_(detail::block_teller::of(resource_)) {
    gpumem::detail::require_value(resource_);
  }
  checked(checked const&) = default;
  checked& operator=(checked const&) = default;
  checked(checked&&)
    requires(!std::is_copy_constructible_v<Resource>)
  = default;
  checked& operator=(checked&&)
    requires(!std::is_copy_constructible_v<Resource>)
  = default;
  ~checked() = default;

  /// Allocates from the wrapped resource and reports the block.
  [[nodiscard]] void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
    void* pointer = resource_.allocate(stream, bytes, alignment);
    teller_.granted(stream.get(), false, pointer, bytes);
    return pointer;
  }

  /// Reports the free and passes it to the wrapped resource.
  void deallocate(cuda::stream_ref stream, void* pointer, std::size_t bytes, std::size_t alignment = 256) noexcept {
    teller_.freed(stream.get(), false, pointer, bytes);
    resource_.deallocate(stream, pointer, bytes, alignment);
  }

  /// Allocates from the wrapped resource and reports the block.
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = 256) {
    void* pointer = resource_.allocate_sync(bytes, alignment);
    teller_.granted(nullptr, true, pointer, bytes);
    return pointer;
  }

  /// Reports the free and passes it to the wrapped resource.
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t alignment = 256) noexcept {
    teller_.freed(nullptr, true, pointer, bytes);
    resource_.deallocate_sync(pointer, bytes, alignment);
  }

  /// Allocates from the wrapped resource without throwing, and reports the block.
  template <class... More>
  [[nodiscard]] auto try_allocate(cuda::stream_ref stream, std::size_t bytes, More... more)
    requires requires(Resource& r) { r.try_allocate(stream, bytes, more...); }
  {
    auto result = resource_.try_allocate(stream, bytes, more...);
    if (result) teller_.granted(stream.get(), false, *result, bytes);
    return result;
  }

  /// Does not compile: requests cannot wait at this resource.
  template <class... Any> void acquire(Any&&...) {
    static_assert(
        sizeof...(Any) > std::size_t{1} << 20,
        "gpumem: simulator::checked has `acquire` only over a resource of gpumem that is not erased: wrap the "
        "pool, and erase the type afterwards");
  }

  /// Reports a free without the size, and passes it to the wrapped resource.
  void deallocate(cuda::stream_ref stream, void* pointer) noexcept
    requires requires(Resource& r) { r.deallocate(stream, pointer); }
  {
    teller_.freed(stream.get(), false, pointer, 0);
    resource_.deallocate(stream, pointer);
  }

  /// Declares the uses of the block that are enqueued on `stream` now. The caller need not order the free after them.
  void record_use(void* pointer, cuda::stream_ref stream)
    requires requires(Resource& r) { r.record_use(pointer, stream); }
  {
    detail::use_recorded(stream.get(), pointer);
    resource_.record_use(pointer, stream);
  }

  /// Returns the wrapped resource.
  [[nodiscard]] Resource& upstream_resource() noexcept { return resource_; }
  [[nodiscard]] Resource const& upstream_resource() const noexcept { return resource_; }

  [[nodiscard]] friend bool operator==(checked const& a, checked const& b) {
    return a.teller_ == b.teller_ && a.resource_ == b.resource_;
  }

  // The property `services` is not forwarded: calls through its function table would bypass this adaptor.
  template <class Property>
    requires(!std::is_same_v<Property, extend::services> &&
             !std::is_same_v<Property, cuda::mr::dynamic_accessibility_property> &&
             cuda::has_property<Resource, Property>)
  friend constexpr decltype(auto) get_property(checked const& self, Property property) {
    return get_property(self.resource_, property);
  }
  // Not a template, so that it is preferred to CCCL's, which knows only the type of the resource.
  friend gpumem::detail::accessibility get_property(checked const& self,
                                                    cuda::mr::dynamic_accessibility_property property) {
    return get_property(self.resource_, property);
  }

private:
  Resource resource_;
  detail::block_teller teller_;
};

/// The adaptor `checked` over a resource of gpumem whose type is not erased. It has the same base class as gpumem's own
/// adaptors, which has `acquire`.
template <detail::gpumem_resource Resource>
class checked<Resource> : public detail::checked_base<checked<Resource>, Resource> {
  using base = detail::checked_base<checked, Resource>;

public:
  /// Wraps the resource. Throws std::bad_alloc.
  explicit checked(Resource resource) : checked(detail::block_teller::of(resource), std::move(resource)) {}

  /// Declares the uses of the block that are enqueued on `stream` now. The caller need not order the free after them.
  void record_use(void* pointer, cuda::stream_ref stream)
    requires requires(Resource& r) { r.record_use(pointer, stream); }
  {
    detail::use_recorded(stream.get(), pointer);
    base::record_use(pointer, stream);
  }

  /// Returns the wrapped resource.
  [[nodiscard]] Resource& upstream_resource() { return this->shared().upstream(); }
  [[nodiscard]] Resource const& upstream_resource() const { return this->shared().upstream(); }

private:
  checked(detail::block_teller const& teller, Resource resource) : base(std::move(resource), teller) {}
};

} // namespace gpumem::simulator
