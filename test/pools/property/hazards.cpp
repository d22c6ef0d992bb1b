// The rare operations of a random program: kernels that wait for other streams, captures, destroyed streams, pinned
// pages.
// SPDX-License-Identifier: Apache-2.0
#include "random_source.hpp"
#include "program.hpp"
#include "region_upstream.hpp"

#include <gpumem/simulator.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <cuda.h>
#include <dlfcn.h>

import gpumem;
#include "stream_kinds.hpp"
#include "random_program.hpp"

namespace gpumem_test {

// A persistent kernel: work that follows a free on its stream ends only after later work of another stream. No wait and
// no call of the pool may keep the thread from enqueuing that work.
template <class Memory> void random_program<Memory>::spin_and_allocate(actor& self) {
  auto& f = fixed();
  auto const bytes = 1 + self.random.below(256 * 1024);
  auto const to = enter(self);
  auto const freed = checked_->try_allocate(f.spin, bytes);
  if (freed) {
    live_block const block{*freed, bytes, spin, -1};
    work(spin, block);
    checked_->deallocate(f.spin, block.pointer, bytes);
    told_free(false);
  }
  auto const value = ++f.raised;
  f.wait_for_flag(f.spin.get(), value);
  auto const got = to == spin ? decltype(freed){nullptr} : checked_->try_allocate(stream_of(to), bytes);
  auto const writer = to == spin ? static_cast<int>(own_a) : to;
  if (got && *got) work(to, {*got, bytes, to, -1});
  f.write_flag(stream_of(writer).get(), value);
  note(got ? offset(*got) : 1);
  if (got && *got) {
    checked_->deallocate(stream_of(to), *got, bytes);
    told_free(false);
  }
  leave(to);
}

// Destroys a stream; another stream gets the same handle at once.
template <class Memory> void random_program<Memory>::recycle_stream(actor& self) {
  auto const which = self.random.one_in(2) ? foreign_c : foreign_d;
  {
    std::scoped_lock const held{mutex_};
    if (users_[which] > 0 || recycling_[which]) return;
    recycling_[which] = true;
  }
  stream_fixtures::destroy_stream(foreign_[which]);
  foreign_[which] = stream_fixtures::make_stream(self.random.one_in(2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
  count("streams recycled");
  std::scoped_lock const held{mutex_};
  recycling_[which] = false;
}

// Allocates, uses and frees some blocks on one stream. Their work may still be pending when this returns.
template <class Memory> void random_program<Memory>::serve_some(actor& self, cuda::stream_ref on) {
  auto const many = 1 + self.random.below(3);
  for (std::uint64_t i = 0; i < many; ++i) {
    auto const bytes = 1 + self.random.below(self.random.one_in(2) ? 4096 : 256 * 1024);
    auto const got = checked_->try_allocate(on, bytes);
    if (!got) return;
    simulator::work(on, {simulator::write(*got, bytes)}, std::chrono::microseconds{5});
    checked_->deallocate(on, *got, bytes);
  }
}

// A stream for one request, destroyed whether or not its work is complete.
template <class Memory> void random_program<Memory>::live_shortly(actor& self) {
  auto const made = stream_fixtures::make_stream(self.random.one_in(2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
  serve_some(self, cuda::stream_ref{made});
  if (self.random.one_in(2)) (void)gpumem::stream::adopt(made); // ends the promise that the stream lives
  stream_fixtures::destroy_stream(made);
  count("streams that lived shortly");
}

template <class Memory> void random_program<Memory>::live_shortly_as_a_thread(actor& self) {
  gpumem::detail::sync::thread one{[&] {
    gpumem::device_guard const here{fixed().device};
    for (auto const which : {null, per_thread}) serve_some(self, stream_of(which));
  }};
  one.join();
  count("threads that lived shortly");
}

// Captured work has not run, and the events of a capturing stream belong to the graph: a later call outside completes
// the free.
template <class Memory> void random_program<Memory>::free_in_capture(actor& self) {
  auto& f = fixed();
  auto const bytes = 1 + self.random.below(64 * 1024);
  auto const got = checked_->try_allocate(f.spin, bytes);
  note(got ? offset(*got) : 1);
  if (!got) return;
  work(spin, {*got, bytes, spin, -1});
  f.spin.begin_capture();
  checked_->deallocate(f.spin, *got, bytes);
  told_free(false);
  auto const refused = checked_->try_allocate(f.spin, bytes);
  if (refused || refused.error().reason != gpumem::outcome::capture_unsupported)
    fail("memory was granted during a capture");
  gpumem::driver_api::check(gpumem::driver_api::driver().graph_destroy(f.spin.end_capture()), "cuGraphDestroy");
  count("frees in a capture");
}

// Pinned pages stay mapped, whichever stream frees the blocks in them, and whatever memory is released meanwhile.
template <class Memory> void random_program<Memory>::pin(actor& self) {
  if constexpr (!std::same_as<Memory, page_memory>) return;
  auto const block = pick(self);
  if (!block) return;
  if (!pool_->pin(block->pointer, block->bytes)) fail("a live block cannot be pinned");
  put(*block);
  for (int i = 0; i < 3; ++i) free_at_home(self);
  count("pins");
  note(pool_->trim(0));
  if (!pool_->find(block->pointer)) fail("a pinned page was unmapped");
  pool_->unpin(block->pointer, block->bytes);
}

template class random_program<region_memory>;
template class random_program<page_memory>;

} // namespace gpumem_test
