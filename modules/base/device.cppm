// A CUDA device: its checked ordinal, its retained primary context, and whether it is lost.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:device;
import :cuda;
import :std;

namespace gpumem {

namespace detail {
// One object per device and process; never destroyed.
struct device_state {
  int ordinal = -1;
  CUdevice handle{};
  CUcontext primary = nullptr;
  unsigned long long context_id = 0; // a reset changes the context's id, but not its handle
  std::atomic<bool> known{false};    // whether the members above are written; after that they never change
  std::atomic<CUresult> lost{CUDA_SUCCESS};
  std::atomic<std::uint64_t> resets_before_loss{0}; // of the simulated device; always 0 with a real driver
};
// Like device::lost_error() and device::interpret() below, but for an ordinal. If gpumem has not used that device, or
// the ordinal is -1, lost_error_of() returns success and interpret() returns `answer`.
CUresult lost_error_of(int ordinal) noexcept;
CUresult interpret(int ordinal, CUresult answer) noexcept;
// Asks the driver whether the device was reset, and if so marks it as lost. Returns whether the device is lost.
bool notice_reset(int ordinal) noexcept;
} // namespace detail

/// Free and total memory of a device, in bytes.
export struct device_memory {
  std::size_t free = 0;  ///< as the driver reports it, so it depends on other processes too
  std::size_t total = 0; ///< of the device
};

/// A device by its ordinal; a small value. The first use of a device retains its primary context until the process
/// ends, so that gpumem and the runtime API use the same context.
///
/// A reset of the primary context (cudaDeviceReset, cuDevicePrimaryCtxReset) ends all streams, events and blocks that
/// gpumem has on the device. A sticky error, after which the driver refuses every call on the context, has the same
/// effect. After either, the device is lost until the process ends: calls throw cuda_error with a text that names the
/// cause, and frees only update counts. A reset is noticed when gpumem next asks the driver about the device. Until
/// then a pool may grant memory that no longer exists. Any thread.
export class device {
public:
  /// Throws std::invalid_argument for an ordinal that does not exist, cuda_error without a driver.
  explicit device(int ordinal = 0);
  device(device_ref ref) : device{ref.get()} {}

  /// Returns the ordinal, as the runtime API counts devices.
  inline int ordinal() const noexcept { return state_->ordinal; }
  /// Returns the device as CCCL names it.
  operator device_ref() const;
  /// Returns the primary context.
  inline CUcontext context() const noexcept { return state_->primary; }

  /// Asks the driver for the free and total memory. Throws cuda_error.
  device_memory memory() const;

  /// Returns whether the device is lost: gpumem has seen a sticky error or a reset, and every allocation fails.
  inline bool lost() const noexcept { return lost_error() != CUDA_SUCCESS; }
  /// Returns the error by which the device was lost; success if it is not lost.
  inline CUresult lost_error() const noexcept {
    auto const error = state_->lost.load(std::memory_order_relaxed);
    return error == CUDA_SUCCESS ? error : still_lost(error);
  }
  /// Marks the device as lost by `error`. Only the first such error is kept.
  void mark_lost(CUresult error) const noexcept;
  /// Interprets the driver's answer to a call for the device. A sticky error marks the device as lost. For any other
  /// error that a reset could explain, asks the driver whether there was a reset. Returns the error by which the device
  /// is lost; if it is not lost, returns `answer`.
  CUresult interpret(CUresult answer) const noexcept;
  /// Throws cuda_error if the device is lost. Does not ask the driver.
  void throw_if_lost() const;
  /// Throws cuda_error if the device is lost, and in a forked child, which cannot use the driver. First asks the driver
  /// whether the device was reset. Every function that makes something for the device calls this first.
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
  friend bool detail::notice_reset(int) noexcept;
  explicit device(detail::device_state& state) noexcept : state_{&state} {}
  bool was_reset() const noexcept;
  CUresult still_lost(CUresult error) const noexcept;
  static void throw_if_context_lost(CUcontext context, CUresult answer);
  detail::device_state* state_;
};

namespace detail {
// Makes a context current for a scope; a null context leaves the current one. Needed for handles such as
// CU_STREAM_LEGACY, which mean a stream of the current context.
class context_guard {
public:
  explicit context_guard(CUcontext context) noexcept;
  context_guard(context_guard const&) = delete;
  context_guard& operator=(context_guard const&) = delete;
  ~context_guard();

  // Returns the driver's answer. If it is not success, the context is not current.
  CUresult result() const noexcept { return result_; }

private:
  CUresult result_;
  bool pushed_;
};
} // namespace detail

/// Makes the device's primary context current for a scope, unless it is current already.
export class [[nodiscard]] device_guard {
public:
  /// Throws cuda_error.
  explicit device_guard(device device);

private:
  detail::context_guard context_guard_;
};

} // namespace gpumem

namespace gpumem::detail {

/// Makes a device current while a resource of another library is called: such a resource may use the current device.
export class held_device {
public:
  explicit held_device(std::optional<device> device) noexcept {
    try {
      if (device) scope_.emplace(*device);
    } catch (...) {
      // This fails only on a lost device. The resource's own driver calls then fail and report it.
    }
  }

private:
  std::optional<device_guard> scope_;
};

} // namespace gpumem::detail
