// The bridge as a .cu file sees it: its types compile, and calls reach a resource that was made elsewhere.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/thrust.hpp>

#include <thrust/device_vector.h>
#include <thrust/host_vector.h>

#include <initializer_list>
#include <stdexcept>
#include <utility>
#include <vector>

#include "thrust_cu.hpp"

template class gpumem::thrust_allocator<int>;

static_assert(sizeof(gpumem::any_pool) == 48);

bool allocate_through_thrust_allocator(cuda::stream_ref stream, gpumem::any_pool resource) {
  gpumem::thrust_allocator<double> const doubles{stream, resource};
  gpumem::thrust_allocator<int> ints{doubles};
  if (gpumem::thrust_allocator<double>{ints} != doubles) return false;
  auto const block = ints.allocate(1000);
  bool const aligned = reinterpret_cast<std::size_t>(thrust::raw_pointer_cast(block)) % 256 == 0;
  ints.deallocate(block, 1000);
  return aligned;
}

using ints = thrust::device_vector<int, gpumem::thrust_allocator<int>>;
using doubles = thrust::device_vector<double, gpumem::thrust_allocator<double>>;

// Never called: the kernels of Thrust need a GPU. Every member of a container compiles with the allocator.
void use_every_constructor(gpumem::thrust_allocator<int> const& a, ints const& other, doubles const& more) {
  std::vector<int> const host{1, 2, 3};
  thrust::host_vector<int> const thrust_host(3);
  ints none, empty{a}, sized(5, a), filled(5, 7, a), copied{other, a}, same{other};
  ints moved{std::move(copied), a}, moved_to{std::move(same)}, of_list(std::initializer_list<int>{1, 2}, a);
  ints of_range(host.begin(), host.end(), a), of_host(thrust_host, a), converted(more.begin(), more.end(), a);
  ints without_init(5, thrust::no_init), with_default_init(5, thrust::default_init), unnamed(5), unnamed_filled(5, 7);
  ints of_vector(host), of_thrust_vector(thrust_host), of_doubles(more);
}

void use_every_modifier(ints& v, ints& other, doubles const& more) {
  std::vector<int> const host{1, 2, 3};
  thrust::host_vector<int> const thrust_host(3);
  thrust::device_vector<int> const plain(3);
  v = other;
  v = std::move(other);
  v = {1, 2};
  v = host;
  v = thrust_host;
  v = plain;
  v = more;
  v.assign(3, 9);
  v.assign(host.begin(), host.end());
  v.assign(plain.begin(), plain.end());
  v.resize(9);
  v.resize(9, 1);
  v.resize(9, thrust::no_init);
  v.resize(9, thrust::default_init);
  v.reserve(10);
  v.shrink_to_fit();
  v.push_back(3);
  v.pop_back();
  v.insert(v.begin(), 3);
  v.insert(v.begin(), 3, 4);
  v.insert(v.begin(), host.begin(), host.end());
  v.insert(v.begin(), other.begin(), other.end());
  v.erase(v.begin());
  v.erase(v.begin(), v.end());
  v.swap(other);
  swap(v, other);
  v.clear();
}

bool use_every_observer(ints const& v, ints& changed) {
  std::vector<int> const host{1, 2, 3};
  static_cast<void>(v.get_allocator());
  bool const sizes = v.size() + v.max_size() + v.capacity() > 0 && v.empty() == (v.data() == changed.data());
  bool const elements = v.front() == v.back() && v[0] == changed[0];
  bool const iterators =
      v.begin() == v.cbegin() && v.rbegin() == v.crbegin() && v.end() == v.cend() && v.rend() == v.crend();
  return sizes && elements && iterators && v == changed && v != thrust::device_vector<int>(3) && v == host;
}

bool use_default_allocator(cuda::stream_ref stream, gpumem::any_pool resource) {
  gpumem::thrust_allocator<int> const none, some{stream, resource};
  if (none == some || none != gpumem::thrust_allocator<int>{}) return false;
  ints taken;
  taken = ints{some};
  if (taken.get_allocator() != some) return false;
  try {
    static_cast<void>(gpumem::thrust_allocator<int>{none}.allocate(1));
  } catch (std::invalid_argument const&) { return true; }
  return false;
}

gpumem::outcome try_in_cu(cuda::stream_ref stream, gpumem::any_pool resource, std::size_t bytes) {
  auto const got = gpumem::try_allocate_erased(resource, stream, bytes);
  if (!got) return got.error().reason;
  resource.deallocate(stream, *got, bytes, 256);
  return gpumem::outcome::granted;
}
