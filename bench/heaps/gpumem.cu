// gpumem's heap for kernels.
// SPDX-License-Identifier: Apache-2.0
#include "kernels.cuh"

#include <gpumem/device_heap.cuh>

namespace heaps {
namespace {

class gpumem_heap : public heap_of<gpumem::heap_view> {
public:
  gpumem_heap(std::size_t bytes, cudaStream_t stream) : slabs_{bytes / gpumem::heap_detail::slab_bytes} {
    auto const layout = gpumem::heap_detail::make_layout(bytes);
    check(cudaMalloc(&data_, bytes), "allocate the slabs");
    check(cudaMalloc(&metadata_, layout.end(slabs_)), "allocate the metadata");
    view_ = {data_, metadata_, bytes, bytes};
    fill(gpumem::heap_detail::fill_of_begin(layout), stream);
    for (auto const& each : gpumem::heap_detail::fills_of_growth(layout, 0, slabs_)) fill(each, stream);
  }
  ~gpumem_heap() override {
    cudaFree(data_);
    cudaFree(metadata_);
  }
  std::optional<usage> in_use(cudaStream_t stream) override {
    std::vector<unsigned char> copy(gpumem::heap_detail::counted_bytes(view_.layout(), slabs_));
    check(cudaMemcpyAsync(copy.data(), metadata_, copy.size(), cudaMemcpyDefault, stream), "copy the metadata");
    check(cudaStreamSynchronize(stream), "wait for the metadata");
    auto const counted = gpumem::heap_detail::count_blocks(copy.data(), slabs_);
    return usage{counted.live_bytes, counted.bytes - counted.free};
  }

private:
  void fill(gpumem::heap_detail::fill const& part, cudaStream_t stream) {
    check(cudaMemsetAsync(metadata_ + part.offset, part.value, part.bytes, stream), "fill the metadata");
  }
  gpumem::heap_view view() const override { return view_; }

  std::size_t slabs_;
  unsigned char *data_ = nullptr, *metadata_ = nullptr;
  gpumem::heap_view view_;
};

} // namespace

std::unique_ptr<heap> make_gpumem(std::size_t bytes, cudaStream_t stream) {
  return std::make_unique<gpumem_heap>(bytes, stream);
}

} // namespace heaps
