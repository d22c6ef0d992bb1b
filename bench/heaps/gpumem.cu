// gpumem's heap for kernels.
// SPDX-License-Identifier: Apache-2.0
#include "kernels.cuh"

#include <gpumem/device_heap.cuh>

#include <cstddef>
#include <memory>
#include <optional>

namespace heaps {
namespace {

class gpumem_heap : public heap_of<gpumem::heap_view> {
public:
  gpumem_heap(gpumem::pool const& pool, std::size_t bytes, cudaStream_t stream) : heap_{pool, stream, {bytes}} {}

  std::optional<usage> in_use(cudaStream_t stream) override {
    auto const now = heap_.statistics(stream);
    return usage{now.live_bytes, now.bytes - now.free};
  }
  bool keeps_context() const override { return true; }

private:
  gpumem::heap_view view() const override { return heap_.view(); }
  gpumem::device_heap heap_;
};

} // namespace

std::unique_ptr<heap> make_gpumem(std::size_t bytes, cudaStream_t stream) {
  static gpumem::pool const pool{0};
  return std::make_unique<gpumem_heap>(pool, bytes, stream);
}

} // namespace heaps
