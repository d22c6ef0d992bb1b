// A CUDA device: its checked ordinal, its retained primary context, and whether it is lost.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:device;
import :cuda;
import :std;

namespace gpumem {

namespace detail {
// One per device and process; never destroyed.
struct device_state {
  int ordinal = -1;
  CUdevice handle{};
  CUcontext primary = nullptr;
  unsigned long long context_id = 0; // a reset gives the context another id, but leaves its handle
  std::atomic<bool> known{false};    // the members above are written, and stay
  std::atomic<CUresult> lost{CUDA_SUCCESS};
};
// device::lost_error and device::interpret by ordinal. For a device that gpumem has not used, and for -1, they return
// success and the unchanged answer.
CUresult lost_error_of(int ordinal) noexcept;
CUresult interpret(int ordinal, CUresult answer) noexcept;
} // namespace detail

/// Free and total memory of a device, in bytes.
export struct device_memory {
  std::size_t free = 0;  ///< as the driver reports it: other processes use the device too
  std::size_t total = 0; ///< of the device
};

/// A device by its ordinal; a small value. It retains the device's primary context until the process ends, so that it
/// works together with the runtime API.
///
/// A reset of the primary context (cudaDeviceReset, cuDevicePrimaryCtxReset) ends all streams, events and blocks that
/// gpumem has on the device, and so does a sticky error. The device is then lost until the process ends. A reset is
/// noticed when gpumem next asks the driver about the device; until then a pool may grant memory that no longer
/// exists. Afterwards calls throw cuda_error with a text that names the cause, and frees only update counts. Any
/// thread.
export class device {
public:
  /// Throws std::invalid_argument for an ordinal that does not exist, cuda_error without a driver.
  explicit device(int ordinal = 0);
  device(device_ref ref) : device{ref.get()} {}

  /// Returns the ordinal, as the runtime API counts.
  inline int ordinal() const noexcept { return state_->ordinal; }
  /// Returns the device as CCCL names it.
  operator device_ref() const { return device_ref{state_->ordinal}; }
  /// Returns the primary context.
  inline CUcontext context() const noexcept { return state_->primary; }

  /// Asks the driver; throws cuda_error.
  device_memory memory() const;

  /// Whether gpumem has seen a sticky error or a reset: nothing can be allocated on the device any more.
  inline bool lost() const noexcept { return lost_error() != CUDA_SUCCESS; }
  /// Returns the error by which the device was lost; success if it is not lost.
  inline CUresult lost_error() const noexcept { return state_->lost.load(std::memory_order_relaxed); }
  /// Notes that the device is lost by `error`; the first such error stays.
  void mark_lost(CUresult error) const noexcept;
  /// Interprets the driver's answer to a call for the device. A sticky error marks the device as lost. Any other error
  /// that a reset could explain makes it ask the driver for a reset. Returns the error by which the device is lost;
  /// otherwise `answer`.
  CUresult interpret(CUresult answer) const noexcept;
  /// Throws cuda_error if the device is lost. Does not ask the driver.
  void throw_if_lost() const;
  /// The same, but first asks the driver whether the device was reset. Throws cuda_error in a forked child as well (see
  /// `driver_alive`). Every function that makes something for the device calls it first.
  void require() const;

  /// Returns the number of devices; throws cuda_error without a driver.
  static int count();

  /// Returns the device of the calling thread's current context. If there is none, makes device 0's primary context
  /// current, as the runtime API does. Throws cuda_error.
  static device current();

  friend bool operator==(device a, device b) noexcept { return a.state_ == b.state_; }

private:
  friend CUresult detail::lost_error_of(int) noexcept;
  friend CUresult detail::interpret(int, CUresult) noexcept;
  explicit device(detail::device_state& known) noexcept : state_{&known} {}
  bool was_reset() const noexcept;
  static void throw_if_context_lost(CUcontext context, CUresult answer);
  detail::device_state* state_;
};

namespace detail {
// Makes a context current for a scope; null leaves the current one. CU_STREAM_LEGACY, for example, is the legacy stream
// of the current context.
class context_guard {
public:
  explicit context_guard(CUcontext context) noexcept;
  context_guard(context_guard const&) = delete;
  context_guard& operator=(context_guard const&) = delete;
  ~context_guard();

  // Returns the driver's answer. Unless that is success, the context is not current.
  CUresult result() const noexcept { return result_; }

private:
  CUresult result_;
  bool pushed_;
};
} // namespace detail

/// Makes the device's primary context current for a scope, if it is not yet. The constructor throws cuda_error.
export class [[nodiscard]] device_guard {
public:
  /// Throws cuda_error.
  explicit device_guard(device which);

private:
  detail::context_guard here_;
};

} // namespace gpumem
