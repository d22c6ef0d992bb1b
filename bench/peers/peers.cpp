// Makes peers, and loads them from shared libraries.
// SPDX-License-Identifier: Apache-2.0
module;

#include "peer.h"

#include <dlfcn.h>

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

module peers;

import gpumem;

namespace peers {

peer_resource::peer_resource(gpumem_peer const& table, gpumem::device device)
    : table_{&table}, self_{table.make(device.ordinal()), table.destroy} {
  if (!self_) throw std::runtime_error(std::string{table.name} + " is not available on this device");
}

gpumem::statistics peer_resource::statistics() const {
  gpumem::statistics all;
  all.reserved = all.peak_reserved = table_->peak_reserved(self_.get());
  return all;
}

std::vector<gpumem_peer const*> load_peers(std::string const& file) {
  auto const refuse = [&] {
    auto const* const why = dlerror();
    throw std::runtime_error("no peers in " + file + ": " + (why ? why : "unknown"));
  };
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse();
  auto const list = reinterpret_cast<decltype(&gpumem_bench_peers)>(dlsym(library, "gpumem_bench_peers"));
  if (!list) refuse();
  std::size_t count = 0;
  auto const* const first = list(&count);
  std::vector<gpumem_peer const*> found;
  for (auto const& each : std::span{first, count}) found.push_back(&each);
  return found;
}

} // namespace peers
