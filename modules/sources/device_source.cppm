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

// A kind of memory: its two driver calls, made with the device current. Each kind aligns to 256 bytes.
struct driver_memory {
  char const* name;
  CUresult (*allocate)(CUdeviceptr* address, std::size_t bytes);
  CUresult (*free)(CUdeviceptr address);
};

// Makes a driver call with the device current and returns its result. If the device was reset or is lost, and in a
// forked child, the call is not made and the error for that state is returned. The call is part of no graph, but
// without relaxed_capture it would invalidate a global-mode capture of another thread.
template <class Call> CUresult call_on(class device where, Call call) noexcept {
  try {
    where.require();
    device_guard const scope{where};
    relaxed_capture const mode;
    return call();
  } catch (cuda_error const& e) { return static_cast<CUresult>(e.status()); }
}

// One per kind and device. Never destroyed: the resources are values that point to it.
class device_source final : public source_state {
public:
  device_source(driver_memory const& kind, class device where) noexcept;
  static device_source& of(driver_memory const& kind, class device where);
  // Whether this is a whole live block of one of the states: one allocation of the driver.
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
