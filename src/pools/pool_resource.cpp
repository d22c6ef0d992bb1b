// The counted state of a pool, and its calls that do not depend on the upstream.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
module gpumem:pool_resource.impl;
import :pool_resource;
import :chunks;
import :cuda;
import :cuda_resource;
import :device;
import :driver;
import :error;
import :fork;
import :misuse;
import :pool_engine;
import :resource;
import :services;
import :stream;
import :virtual_pages;

namespace gpumem::detail {

std::unique_ptr<pool_upstream> held_pages(gpumem::device where, virtual_pages_options pages) {
  cuda_resource chunks{where};
  if (!virtual_pages::supported(where)) return std::make_unique<held_upstream<cuda_resource>>(std::move(chunks));
  return std::make_unique<held_upstream<cuda_resource>>(std::move(chunks), where, std::move(pages));
}

// In a forked child what the state would give back is the parent's.
void pool_state::drop_handle() noexcept {
  if (forked() || handles_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (engine_->abandon()) dispose();
}

void pool_state::dispose() noexcept {
  engine_->close();
  delete this;
}

expected<void*, failure> pool_state::refuse_closed(stream_key const& key, std::size_t bytes) noexcept {
  report_misuse({misuse::kind::use_after_close, nullptr, bytes, 0, key.id(), engine_->options().name.c_str()});
  return unexpected<failure>{failure{outcome::closed, 0, bytes}};
}

bool pool_state::settle(std::chrono::nanoseconds longest) { return driver_alive() && engine_->settle(longest); }

std::size_t pool_state::trim(std::size_t keep) { return driver_alive() ? engine_->trim(keep) : 0; }

void pool_deallocate(pool_state& state, stream_ref stream, void* pointer) noexcept {
  if (!pointer || !may_free()) return;
  if (auto const key = try_identify(stream, state.where(), 0)) {
    state.deallocate(*key, pointer);
  } else if (key.error().what == outcome::device_lost) {
    state.deallocate(stream_key::host(), pointer);
  } else {
    report_bad_stream(pointer, 0);
  }
}

void pool_record_use(pool_state& state, void* pointer, stream_ref stream) {
  if (!pointer || !may_free()) return;
  auto const where = state.where();
  state.engine().record_use(where ? identify(stream, *where) : identify(stream), pointer);
}

} // namespace gpumem::detail
