// Thrust's algorithms on a device, with temporary memory and containers from gpumem.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/thrust.hpp>

#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

#include "thrust_device.hpp"

namespace {

template <class T> using vector = thrust::device_vector<T, gpumem::thrust_allocator<T>>;

struct is_odd {
  __host__ __device__ bool operator()(int value) const { return value % 2 != 0; }
};

// Returns an unsorted sequence with repetitions.
std::vector<int> scrambled(std::size_t count) {
  std::vector<int> values(count);
  unsigned state = 12345;
  for (auto& value : values) value = static_cast<int>((state = state * 1664525u + 1013904223u) >> 12) % 10007;
  return values;
}

// Runs each algorithm on the stream and on the host. Each has a result of its own, so that none hides another's
// failure.
template <class Policy> class comparison {
public:
  comparison(cuda::stream_ref stream, gpumem::any_pool const& resource, std::size_t count, Policy policy)
      : stream_{stream}, allocator_{stream, resource}, policy_{policy}, expected_{scrambled(count)},
        values_(count, 0, allocator_) {
    upload();
  }

  char const* first_difference() {
    if (!sorts()) return "sort";
    if (!scans()) return "scan";
    if (!copies_odd()) return "copy_if";
    if (!makes_unique()) return "unique";
    return "";
  }

private:
  void upload() {
    cudaMemcpyAsync(thrust::raw_pointer_cast(values_.data()), expected_.data(), expected_.size() * sizeof(int),
                    cudaMemcpyHostToDevice, stream_.get());
    cudaStreamSynchronize(stream_.get());
  }
  bool same(vector<int> const& got, std::vector<int> const& wanted) {
    std::vector<int> back(wanted.size());
    cudaMemcpyAsync(back.data(), thrust::raw_pointer_cast(got.data()), back.size() * sizeof(int),
                    cudaMemcpyDeviceToHost, stream_.get());
    return cudaStreamSynchronize(stream_.get()) == cudaSuccess && back == wanted;
  }
  bool sorts() {
    thrust::sort(policy_, values_.begin(), values_.end());
    std::sort(expected_.begin(), expected_.end());
    return same(values_, expected_);
  }
  bool scans() {
    vector<int> sums(values_.size(), 0, allocator_);
    thrust::inclusive_scan(policy_, values_.begin(), values_.end(), sums.begin());
    std::vector<int> wanted(expected_.size());
    std::partial_sum(expected_.begin(), expected_.end(), wanted.begin());
    return same(sums, wanted);
  }
  bool copies_odd() {
    vector<int> odd(values_.size(), 0, allocator_);
    auto const end = thrust::copy_if(policy_, values_.begin(), values_.end(), odd.begin(), is_odd{});
    std::vector<int> wanted;
    std::copy_if(expected_.begin(), expected_.end(), std::back_inserter(wanted), is_odd{});
    return static_cast<std::size_t>(end - odd.begin()) == wanted.size() && same(odd, wanted);
  }
  bool makes_unique() {
    auto const end = thrust::unique(policy_, values_.begin(), values_.end());
    expected_.erase(std::unique(expected_.begin(), expected_.end()), expected_.end());
    return static_cast<std::size_t>(end - values_.begin()) == expected_.size() && same(values_, expected_);
  }

  cuda::stream_ref stream_;
  gpumem::thrust_allocator<int> allocator_;
  Policy policy_;
  std::vector<int> expected_;
  vector<int> values_;
};

template <class Policy>
char const* first_difference(cuda::stream_ref stream, gpumem::any_pool const& resource, std::size_t count,
                             Policy policy) {
  return comparison<Policy>{stream, resource, count, policy}.first_difference();
}

} // namespace

char const* algorithm_that_differs(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count, bool waits) {
  return waits ? first_difference(stream, resource, count, gpumem::exec_policy(stream, resource))
               : first_difference(stream, resource, count, gpumem::exec_policy_nosync(stream, resource));
}

long sum_on_device(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t count) {
  vector<long> const values(count, 2L, gpumem::thrust_allocator<long>{stream, resource});
  return thrust::reduce(gpumem::exec_policy_nosync(stream, resource), values.begin(), values.end(), 0L);
}
