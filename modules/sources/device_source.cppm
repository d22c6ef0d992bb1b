// The state of the resources that get each block by a driver call on one device.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:device_source;
import :cuda;
import :device;
import :driver;
import :error;
import :source_state;
import :std;
import :stream;

namespace gpumem::detail {

// A kind of memory: its two driver calls, made while the device is current. Each kind aligns to 256 bytes.
struct driver_memory {
  char const* name;
  CUresult (*allocate)(CUdeviceptr* address, std::size_t bytes);
  CUresult (*free)(CUdeviceptr address);
};

// Makes a driver call while the device is current, and returns its result. If the device was reset or is lost, or in a
// forked child, does not make the call and returns the error for that state. The call belongs to no graph. Nevertheless
// it would invalidate a global-mode graph capture of another thread; relaxed_capture prevents that.
template <class Call> CUresult call_on(class device where, Call call) noexcept {
  try {
    where.require();
    device_guard const scope{where};
    relaxed_capture const mode;
    return call();
  } catch (cuda_error const& e) { return static_cast<CUresult>(e.status()); }
}

// One object per kind of memory and device. Never destroyed: the resources are values that point to it.
class device_source final : public source_state {
public:
  device_source(driver_memory const& kind, class device where) noexcept;
  static device_source& of(driver_memory const& kind, class device where);
  // Returns whether `pointer` and `bytes` are a whole live block of any device_source: one allocation of the driver.
  static bool any_has_block(void* pointer, std::size_t bytes) noexcept;
  class device where() noexcept { return device_; }

private:
  expected<void*, failure> allocate_memory(stream_key const& key, std::size_t bytes,
                                           std::size_t alignment) noexcept override;
  bool free_memory(block const& returned) noexcept override;
  void mark_lost(stream_key const& key, CUresult error) noexcept override;

  driver_memory const& kind_;
  class device device_;
};

} // namespace gpumem::detail
