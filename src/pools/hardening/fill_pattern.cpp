// Writes, copies and compares the patterns with which hardened pools fill guards and freed memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <dlfcn.h>
#include <algorithm>
#include <cstddef>
#include <cstring>
module gpumem:fill_pattern.impl;
import :fill_pattern;
import :cuda;
import :device;
import :driver;
import :stream;
import :stream_timeline;

namespace gpumem::detail {
namespace {

// While an object of this class lives, driver calls of its thread count as the pool's own. The simulated driver of the
// tests reports accesses to memory that is not allocated; this class exempts the pool's fills and copies.
class own_work {
public:
  own_work() noexcept { tell(1); }
  ~own_work() { tell(0); }
  own_work(own_work const&) = delete;
  own_work& operator=(own_work const&) = delete;

private:
  static void tell(int begins) noexcept {
    static auto* const told = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "gpumem_simulator_own_work"));
    if (told) told(begins);
  }
};

template <class Call> bool enqueue(stream_key const& on, Call call) noexcept {
  if (!driver_alive()) return false;
  try {
    device const where{on.timeline().device()};
    device_guard const scope{where};
    own_work const ours;
    return !where.lost() && where.interpret(call()) == CUDA_SUCCESS;
  } catch (...) { return false; }
}

CUdeviceptr address(char const* pointer) noexcept { return reinterpret_cast<CUdeviceptr>(pointer); }

} // namespace

bool fill(stream_key const& on, byte_run what, fill_pattern with) noexcept {
  if (what.bytes == 0) return true;
  return enqueue(on, [&] {
    return driver().memset_d8_async(address(what.data), static_cast<unsigned char>(with), what.bytes, on.handle());
  });
}

void fill_by_host(byte_run what, fill_pattern with) noexcept {
  if (what.bytes) std::memset(what.data, static_cast<unsigned char>(with), what.bytes);
}

bool read_back(stream_key const& on, byte_run what, char* into) noexcept {
  if (what.bytes == 0) return true;
  return enqueue(on, [&] { return driver().memcpy_dtoh_async(into, address(what.data), what.bytes, on.handle()); });
}

// Usually all bytes are right. So the first byte is compared with the pattern, and then each byte with the next one by
// a single memcmp.
corruption compare(char const* data, std::size_t bytes, fill_pattern with) noexcept {
  auto const right = static_cast<unsigned char>(with);
  auto const wrong = [&](std::size_t i) { return static_cast<unsigned char>(data[i]) != right; };
  if (bytes == 0 || (!wrong(0) && std::memcmp(data, data + 1, bytes - 1) == 0)) return {};
  corruption found;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (!wrong(i)) continue;
    if (found.bytes++ == 0) found.first = i;
    found.last = i;
  }
  return found;
}

} // namespace gpumem::detail
