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
  std::atomic<bool> known{false}; // the rest is written and stays
  std::atomic<CUresult> lost{CUDA_SUCCESS};
};
} // namespace detail

/// Free and total memory of a device, in bytes.
export struct device_memory {
  std::size_t free = 0;
  std::size_t total = 0;
};

/// A device by its ordinal; a small value. Keeps the device's primary context retained for the life of the process, so
/// it lives beside the runtime API. Any thread.
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

  /// Whether a sticky error was seen on it: nothing can be allocated there any more.
  inline bool lost() const noexcept { return loss() != CUDA_SUCCESS; }
  /// The error by which the device was lost, or success.
  inline CUresult loss() const noexcept { return state_->lost.load(std::memory_order_relaxed); }
  /// Remembers the first sticky error.
  void lose(CUresult error) const noexcept;

  /// How many devices there are; throws cuda_error without a driver.
  static int count();

  /// The device of the calling thread's current context; makes device 0's primary context current where there is none,
  /// as the runtime API does. Throws cuda_error.
  static device current();

  friend bool operator==(device a, device b) noexcept { return a.state_ == b.state_; }

private:
  detail::device_state* state_;
};

/// Makes the device's primary context current for a scope, if it is not. Throws cuda_error on entry.
export class current_device {
public:
  explicit current_device(device which);
  current_device(current_device const&) = delete;
  current_device& operator=(current_device const&) = delete;
  ~current_device();

private:
  bool pushed_;
};

/// Whether an error of the driver means that the context is gone for good.
export bool sticky(CUresult error) noexcept;

} // namespace gpumem
