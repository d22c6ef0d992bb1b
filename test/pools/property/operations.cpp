// The frequent operations of a random program: uses, orders, frees on other streams, trims.
// SPDX-License-Identifier: Apache-2.0
#include "random_source.hpp"
#include "program.hpp"
#include "region_upstream.hpp"

#include <gpumem/simulator.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
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

namespace {
constexpr std::size_t often[] = {1000, 4096, 50'000, 300'000}; // requested again, to hit the thread caches
} // namespace

template <class Memory> void random_program<Memory>::allocate(actor& self) {
  constexpr std::size_t largest[] = {4096, 64 * 1024, 512 * 1024, 1 * MiB, 4 * MiB};
  auto const which = enter(self);
  auto const bytes = self.random.one_in(3) ? self.random.of(often) : 1 + self.random.below(self.random.of(largest));
  auto const alignment = self.random.one_in(8) ? std::size_t{4096} : std::size_t{256};
  auto const got = checked_->try_allocate(stream_of(which), bytes, alignment);
  note(got ? offset(*got) : 1 + static_cast<unsigned>(got.error().reason));
  if (!got) {
    leave(which);
    return;
  }
  if (reinterpret_cast<std::uintptr_t>(*got) % alignment != 0) fail("a block is not aligned");
  bool const bound = which == null || which == per_thread || which == spin;
  live_block const block{*got, bytes, which, bound ? self.thread : -1};
  work(which, block);
  put(block);
}

// Frees and allocates the same size on the same stream repeatedly.
template <class Memory> void random_program<Memory>::churn(actor& self) {
  auto const which = enter(self);
  auto const bytes = self.random.of(often);
  for (int i = 0; i < 4; ++i) {
    auto const got = checked_->try_allocate(stream_of(which), bytes);
    note(got ? offset(*got) : 1);
    if (!got) break;
    work(which, {*got, bytes, which, -1});
    checked_->deallocate(stream_of(which), *got, bytes);
    told_free(false);
  }
  leave(which);
}

template <class Memory> void random_program<Memory>::allocate_by_host(actor& self) {
  auto const bytes = 1 + self.random.below(64 * 1024);
  void* p = nullptr;
  try {
    p = checked_->allocate_sync(bytes);
  } catch (gpumem::out_of_memory const&) {}
  note(offset(p));
  if (p) put({p, bytes, -1, -1});
}

template <class Memory> void random_program<Memory>::use(actor& self) {
  auto const block = pick(self);
  if (!block) return;
  if (block->home >= 0 && !block->read) work(block->home, *block);
  put(*block);
}

template <class Memory> void random_program<Memory>::free_at_home(actor& self) {
  auto const block = pick(self);
  if (!block) return;
  if (block->home < 0) {
    checked_->deallocate_sync(block->pointer, block->bytes);
  } else if (self.random.one_in(8)) {
    checked_->deallocate(stream_of(block->home), block->pointer);
  } else {
    checked_->deallocate(stream_of(block->home), block->pointer, block->bytes);
  }
  told_free(false);
  leave(block->home);
}

template <class Memory> void random_program<Memory>::free_elsewhere(actor& self) {
  auto const block = pick(self);
  if (!block) return;
  auto const to = enter(self);
  if (block->home >= 0) order(self.event, block->home, to);
  if (self.random.one_in(2) && !block->read) work(to, *block);
  checked_->deallocate(stream_of(to), block->pointer, block->bytes);
  told_free(to != block->home);
  leave(to);
  leave(block->home);
}

// Frees as the destructor of an allocation does.
template <class Memory> void random_program<Memory>::free_by_identity(actor& self) {
  auto const block = pick(self);
  if (!block) return;
  if (block->home < 0) return put(*block);
  auto const on = gpumem::extend::identify(stream_of(block->home), fixed().device);
  auto const key = gpumem::extend::stream_key::at_end_of(on.identity().timeline(), on.identity().handle());
  auto const services = checked_->services();
  services.table->deallocate_keyed(services.state, &key, block->pointer, block->bytes, 256);
  told_free(false);
  leave(block->home);
}

template <class Memory> void random_program<Memory>::free_by_host(actor& self) {
  auto const block = pick(self);
  if (!block) return;
  if (block->home >= 0) {
    self.event.record(stream_of(block->home));
    self.event.synchronize();
  }
  checked_->deallocate_sync(block->pointer, block->bytes);
  told_free(block->home >= 0);
  leave(block->home);
}

// Uses the block on another stream, and declares that use in place of ordering the free after it.
template <class Memory> void random_program<Memory>::record_use(actor& self) {
  auto block = pick(self);
  if (!block) return;
  auto const to = enter(self);
  if (block->home >= 0) order(self.event, block->home, to);
  simulator::work(stream_of(to), {simulator::read(block->pointer, block->bytes)}, std::chrono::microseconds{5});
  try {
    checked_->record_use(block->pointer, stream_of(to));
  } catch (gpumem::cuda_error const& e) { fail(std::string{"record_use: "} + e.what()); }
  leave(to);
  block->read = true;
  if (block->home < 0 || self.random.one_in(2)) return put(*block);
  checked_->deallocate(stream_of(block->home), block->pointer, block->bytes);
  told_free(to != block->home);
  leave(block->home);
}

template <class Memory> void random_program<Memory>::order_streams(actor& self) {
  auto const from = enter(self), to = enter(self);
  order(self.event, from, to);
  leave(from);
  leave(to);
}

template <class Memory> void random_program<Memory>::look_for_completion(actor& self) {
  auto const which = enter(self);
  self.event.record(stream_of(which));
  if (self.random.one_in(4)) {
    self.event.synchronize();
  } else {
    note(self.event.is_done());
  }
  leave(which);
}

template <class Memory> void random_program<Memory>::trim(actor& self) {
  auto const given = pool_->trim(self.random.below(3) * MiB);
  note(given);
  if (given) count("trims that gave memory back");
}

template <class Memory> void random_program<Memory>::reserve(actor& self) {
  auto const wanted = pool_->statistics().reserved + self.random.below(3) * MiB / 2;
  try {
    auto const drawn = pool_->reserve(wanted);
    note(drawn);
    if (drawn) count("reserves that drew memory");
  } catch (gpumem::out_of_memory const&) { count("reserves beyond what there is"); } catch (gpumem::cuda_error const&) {
    count("reserves that were refused");
  }
}

template <class Memory> void random_program<Memory>::check_conservation(actor&) {
  if (!engine().is_consistent()) fail("allocated and free bytes are not the reserved bytes");
}

// Borrows pages, works on them, and keeps them; or ends a loan.
template <class Memory> void random_program<Memory>::borrow(actor& self) {
  if (self.random.one_in(2)) {
    std::unique_lock held{mutex_};
    auto const found = std::ranges::find_if(
        loans_, [&](live_block const& each) { return each.thread < 0 || each.thread == self.thread; });
    if (found != loans_.end()) {
      auto const loan = *found;
      loans_.erase(found);
      held.unlock();
      return end_loan(self, loan);
    }
  }
  auto const which = enter(self);
  auto const bytes = (1 + self.random.below(2)) * 2 * MiB;
  auto const offset = self.random.below(10) * 2 * MiB;
  auto const got = self.random.one_in(2) ? lender_->try_allocate(stream_of(which), bytes)
                                         : lender_->try_allocate_at(stream_of(which), offset, bytes);
  note(got ? static_cast<std::uint64_t>(static_cast<std::byte*>(*got) - static_cast<std::byte*>(lender_->base()))
           : 1 + static_cast<unsigned>(got.error().reason));
  count(got ? "loans" : "loans refused");
  if (!got) return leave(which);
  simulator::detail::allocated(borrower_, stream_of(which).get(), false, *got, bytes);
  bool const bound = which == null || which == per_thread || which == spin;
  live_block const loan{*got, bytes, which, bound ? self.thread : -1};
  work(which, loan);
  std::scoped_lock const held{mutex_};
  loans_.push_back(loan);
}

template <class Memory> void random_program<Memory>::end_loan(actor& self, live_block const& loan) {
  if (self.random.one_in(2)) return end_loan(loan, loan.home);
  auto const to = enter(self);
  order(self.event, loan.home, to);
  work(to, loan);
  end_loan(loan, to);
  leave(to);
}

template <class Memory> void random_program<Memory>::end_loan(live_block const& loan, int on) {
  simulator::detail::freed(borrower_, stream_of(on).get(), false, loan.pointer, loan.bytes);
  lender_->deallocate(stream_of(on), loan.pointer, loan.bytes);
  told_free(on != loan.home);
  leave(loan.home);
}

template <class Memory> void random_program<Memory>::step(actor& self) {
  struct operation {
    unsigned weight;
    void (random_program::*run)(actor&);
  };
  constexpr operation operations[] = {{30, &random_program::allocate},
                                      {3, &random_program::churn},
                                      {2, &random_program::allocate_by_host},
                                      {8, &random_program::use},
                                      {8, &random_program::free_at_home},
                                      {14, &random_program::free_elsewhere},
                                      {2, &random_program::free_by_identity},
                                      {2, &random_program::free_by_host},
                                      {5, &random_program::record_use},
                                      {3, &random_program::order_streams},
                                      {4, &random_program::look_for_completion},
                                      {2, &random_program::trim},
                                      {3, &random_program::recycle_stream},
                                      {3, &random_program::live_shortly},
                                      {2, &random_program::live_shortly_as_a_thread},
                                      {1, &random_program::check_conservation},
                                      {1, &random_program::reserve},
                                      {1, &random_program::pin}};
  if (self.thread == 0 && self.random.one_in(24) && memory_.may_wait_for_host()) return spin_and_allocate(self);
  if (self.thread == 0 && self.random.one_in(24)) return free_in_capture(self);
  if (Memory::lends && self.random.one_in(16)) return borrow(self);
  auto at = self.random.below(94);
  for (auto const& each : operations) {
    if (at < each.weight) return (this->*each.run)(self);
    at -= each.weight;
  }
}

template class random_program<region_memory>;
template class random_program<page_memory>;

} // namespace gpumem_test
