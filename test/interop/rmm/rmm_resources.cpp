// The part that includes RMM; it imports no module.
// SPDX-License-Identifier: Apache-2.0
#include "rmm_resources.hpp"

#include <gpumem/cccl.hpp>

#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include <utility>

struct rmm_statistics::adaptor {
  rmm::mr::statistics_resource_adaptor value;
};

namespace {

rmm_statistics::counts told(rmm::mr::statistics_resource_adaptor::counter const& counter) {
  return {counter.value, counter.peak, counter.total};
}

} // namespace

rmm_statistics::rmm_statistics(device_memory upstream)
    : adaptor_{std::make_unique<adaptor>(rmm::mr::statistics_resource_adaptor{std::move(upstream)})} {}
rmm_statistics::~rmm_statistics() = default;

device_memory rmm_statistics::resource() const { return device_memory{adaptor_->value}; }
rmm_statistics::counts rmm_statistics::bytes() const { return told(adaptor_->value.get_bytes_counter()); }
rmm_statistics::counts rmm_statistics::allocations() const { return told(adaptor_->value.get_allocations_counter()); }

device_memory limited_by_rmm(device_memory upstream, std::size_t limit) {
  return device_memory{rmm::mr::limiting_resource_adaptor{std::move(upstream), limit}};
}
device_memory cuda_memory_of_rmm() { return device_memory{rmm::mr::cuda_memory_resource{}}; }
device_memory pool_of_rmm(device_memory upstream, std::size_t initial_size) {
  return device_memory{rmm::mr::pool_memory_resource{std::move(upstream), initial_size}};
}
