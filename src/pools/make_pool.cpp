// Makes pools for code that cannot import the module.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/make_pool.hpp>
#include <utility>
module gpumem:make_pool.impl;
import :cuda_resource;
import :device;
import :pool_options;
import :pool_resource;

namespace gpumem {

// extern "C++" makes the function belong to no module, because a header declares it.
extern "C++" any_pool make_pool(int ordinal, pool_options options) {
  return any_pool{pool_resource<cuda_resource>{device{ordinal}, std::move(options)}};
}

} // namespace gpumem
