// A CUDA device: its ordinal checked, its primary context retained, its loss remembered.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:device;
import :cuda;
import :std;

namespace gpumem {

namespace detail {
// One a device and process; never destroyed.
struct device_state {
  int ordinal = -1;
  CUdevice handle{};
  CUcontext primary = nullptr;
  unsigned long long context_id = 0; // another one after a reset, which leaves the handle as it is
  std::atomic<bool> known{false};    // the rest is written and stays
  std::atomic<CUresult> lost{CUDA_SUCCESS};
};
// device::lost_error and device::interpret by ordinal. Of a device that gpumem has not used, and of -1, they return
// success and the answer as it is.
CUresult lost_error_of(int ordinal) noexcept;
CUresult interpret(int ordinal, CUresult answer) noexcept;
} // namespace detail

/// Free and total memory of a device, in bytes.
export struct device_memory {
  std::size_t free = 0;
  std::size_t total = 0;
};

/// A device by its ordinal; a small value. Keeps the device's primary context retained for the life of the process, so
/// it lives beside the runtime API.
///
/// A reset of the primary context (cudaDeviceReset, cuDevicePrimaryCtxReset) ends all streams, events and blocks that
/// gpumem has on the device, and so does a sticky error. The device is then lost to gpumem until the process ends.
/// gpumem notices a reset when it next asks the driver about the device; until then a pool may grant memory that no
/// longer exists. Afterwards calls throw cuda_error with a sentence that names the cause, and frees only keep the
/// books. Any thread.
export class device {
public:
  /// Throws std::invalid_argument for an ordinal that does not exist, cuda_error without a driver.
  explicit device(int ordinal = 0);
  device(device_ref ref) : device{ref.get()} {}

  inline int ordinal() const noexcept { return state_->ordinal; }
  operator device_ref() const { return device_ref{state_->ordinal}; }
  inline CUcontext context() const noexcept { return state_->primary; }

  /// Asks the driver; throws cuda_error.
  device_memory memory() const;

  /// Whether a sticky error was seen on it, or a reset: nothing can be allocated there any more.
  inline bool lost() const noexcept { return lost_error() != CUDA_SUCCESS; }
  /// The error by which the device was lost, or success.
  inline CUresult lost_error() const noexcept { return state_->lost.load(std::memory_order_relaxed); }
  /// Remembers the first sticky error.
  void mark_lost(CUresult error) const noexcept;
  /// Interprets the driver's answer to a call for the device. Returns the answer, or the error by which the device is
  /// lost, which is then noted. Asks the driver whether the device was reset where that could explain an error.
  CUresult interpret(CUresult answer) const noexcept;
  /// Throws cuda_error if the device is lost. Asks no driver.
  void throw_if_lost() const;
  /// The same, but first asks the driver whether the device was reset. Throws cuda_error in a forked child as well (see
  /// `driver_alive`). The first line of every function that makes something for the device.
  void require() const;

  /// How many devices there are; throws cuda_error without a driver.
  static int count();

  /// The device of the calling thread's current context; makes device 0's primary context current where there is none,
  /// as the runtime API does. Throws cuda_error.
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

/// Makes the device's primary context current for a scope, if it is not. Throws cuda_error on entry.
export class device_guard {
public:
  explicit device_guard(device which);
  device_guard(device_guard const&) = delete;
  device_guard& operator=(device_guard const&) = delete;
  ~device_guard();

private:
  bool pushed_;
};

} // namespace gpumem
