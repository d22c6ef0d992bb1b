// CUB's algorithms and CCCL's buffer on a device, over gpumem's resources.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>

#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cuda/buffer>
#include <cuda/std/execution>

#include "thrust_device.hpp"

namespace {

auto twos(cuda::stream_ref stream, gpumem::any_pool const& resource, std::size_t count) {
  return cuda::make_buffer<long>(stream, resource, count, 2L);
}

template <class Buffer> long last_of(cuda::stream_ref stream, Buffer const& values) {
  long value = 0;
  cudaMemcpyAsync(&value, values.data() + values.size() - 1, sizeof value, cudaMemcpyDeviceToHost, stream.get());
  return cudaStreamSynchronize(stream.get()) == cudaSuccess ? value : -1;
}

} // namespace

cub_sums cub_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count) {
  auto const values = twos(stream, resource, count);
  auto sum = cuda::make_buffer<long>(stream, resource, 1, 0L);
  auto running = cuda::make_buffer<long>(stream, resource, count, 0L);
  auto const environment = cuda::std::execution::env{stream, resource};
  cub_sums sums{-1, -1};
  if (cub::DeviceReduce::Sum(values.data(), sum.data(), count, environment) != cudaSuccess) return sums;
  if (cub::DeviceScan::InclusiveSum(values.data(), running.data(), count, environment) != cudaSuccess) return sums;
  sums.sum = last_of(stream, sum);
  sums.last_running_sum = last_of(stream, running);
  return sums;
}

long buffer_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count) {
  auto const values = twos(stream, resource, count);
  auto const copied = cuda::make_buffer<long>(stream, resource, values);
  auto sum = cuda::make_buffer<long>(stream, resource, 1, 0L);
  auto const environment = cuda::std::execution::env{stream, resource};
  if (cub::DeviceReduce::Sum(copied.data(), sum.data(), count, environment) != cudaSuccess) return -1;
  return last_of(stream, sum);
}
