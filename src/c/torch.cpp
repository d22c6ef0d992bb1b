// The functions of gpumem_torch.h.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem_torch.h>

#include <new>
#include <stdexcept>
#include <utility>

#include "copy_known.hpp"
#include "failure.hpp"
#include "shared_blocks.hpp"
#include "torch_pools.hpp"

import gpumem;

using gpumem::c::opened_pages;
using gpumem::c::outcome_of;
using gpumem::c::torch_device;
using gpumem::c::torch_pools;

namespace {

/// Exception for missing memory, with the text of gpumem_last_error.
class torch_out_of_memory final : public std::bad_alloc {
public:
  torch_out_of_memory() : text_{gpumem_last_error()} {}
  char const* what() const noexcept override { return text_.what(); }

private:
  std::runtime_error text_; // a std::runtime_error copies its text without throwing
};

/// Throws unless the outcome is GPUMEM_GRANTED. The exceptions have types of the standard library, or types derived
/// from them: PyTorch catches no others.
void raise_unless_granted(gpumem_outcome outcome) {
  if (outcome == GPUMEM_GRANTED) return;
  if (outcome == GPUMEM_EXHAUSTED || outcome == GPUMEM_TOO_LARGE) throw torch_out_of_memory{};
  if (outcome == GPUMEM_INVALID_ARGUMENT) throw std::invalid_argument{gpumem_last_error()};
  throw std::runtime_error{gpumem_last_error()};
}

/// Runs the work with PyTorch's pools. Does nothing in a child process after fork().
template <class Work> gpumem_outcome outcome_with_pools(Work work) noexcept {
  return outcome_of([&] {
    if (!gpumem::detail::forked()) work(torch_pools::instance());
  });
}

gpumem_outcome allocate(size_t bytes, size_t room, int device, CUstream_st* stream, int promises,
                        void*& pointer) noexcept {
  return outcome_of([&] {
    gpumem::detail::throw_if_child();
    pointer = torch_pools::instance().allocate(bytes, room, device, stream, promises);
  });
}

/// Runs the work with the device. Does nothing if the device has no pool yet.
template <class Work> gpumem_outcome outcome_with_device(int device, Work work) noexcept {
  return outcome_with_pools([&](torch_pools& all) {
    if (auto* const known = all.made(device)) work(*known);
  });
}

} // namespace

gpumem_outcome gpumem_torch_configure(char const* options) noexcept {
  return outcome_with_pools([&](torch_pools& all) { all.configure(options); });
}

gpumem_outcome gpumem_torch_pool(int device, gpumem_pool** pool) noexcept {
  if (!pool) return gpumem::c::refuse("gpumem_torch_pool", "the out-pointer is NULL");
  return outcome_of([&] {
    auto* const known = gpumem::detail::forked() ? nullptr : torch_pools::instance().made(device);
    *pool = known ? &known->pool() : nullptr;
  });
}

gpumem_outcome gpumem_torch_share_pool(int device, gpumem_pool* pool) noexcept {
  if (!pool) return gpumem::c::refuse("gpumem_torch_share_pool", "the pool is NULL");
  return outcome_of([&] {
    gpumem::detail::throw_if_child();
    torch_pools::instance().share_pool(device, pool);
  });
}

void* gpumem_torch_try_allocate(size_t bytes, int device, CUstream_st* stream) noexcept {
  void* pointer = nullptr;
  allocate(bytes, bytes, device, stream, 0, pointer);
  return pointer;
}

void gpumem_torch_free(void* pointer, size_t bytes, int device, CUstream_st* stream) noexcept {
  outcome_with_pools([&](torch_pools& all) { all.free(pointer, bytes, device, stream); });
}

gpumem_outcome gpumem_torch_allocate_block(size_t bytes, int device, CUstream_st* stream, int promises,
                                           void** pointer) noexcept {
  if (!pointer) return gpumem::c::refuse("gpumem_torch_allocate_block", "the out-pointer is NULL");
  return allocate(bytes, bytes, device, stream, promises, *pointer);
}

gpumem_outcome gpumem_torch_allocate_rounded_block(size_t bytes, size_t room, int device, CUstream_st* stream,
                                                   int promises, void** pointer) noexcept {
  constexpr auto name = "gpumem_torch_allocate_rounded_block";
  if (!pointer) return gpumem::c::refuse(name, "the out-pointer is NULL");
  if (room < bytes) return gpumem::c::refuse(name, "the room is less than the bytes");
  return allocate(bytes, room, device, stream, promises, *pointer);
}

gpumem_outcome gpumem_torch_free_block(void* pointer, size_t* bytes) noexcept {
  size_t freed = 0;
  auto const done = outcome_with_pools([&](torch_pools& all) { freed = all.free(pointer); });
  if (bytes && done == GPUMEM_GRANTED) *bytes = freed;
  return done;
}

gpumem_outcome gpumem_torch_record_block_stream(void* pointer, CUstream_st* stream, int device) noexcept {
  return gpumem_torch_record_block_use(pointer, stream, device, 0);
}

gpumem_outcome gpumem_torch_record_block_use(void* pointer, CUstream_st* stream, int device, int promises) noexcept {
  return outcome_with_pools([&](torch_pools& all) { all.record_stream(pointer, stream, device, promises); });
}

gpumem_outcome gpumem_torch_open_to(int device, int accessed) noexcept {
  return outcome_with_pools([&](torch_pools& all) { all.of(accessed).pool().open_to(device); });
}

gpumem_outcome gpumem_torch_set_memory_fraction(double fraction, int device) noexcept {
  return outcome_with_pools([&](torch_pools& all) { all.set_fraction(fraction, device); });
}

gpumem_outcome gpumem_torch_describe_block(void const* pointer, gpumem_torch_block* block) noexcept {
  if (!block) return gpumem::c::refuse("gpumem_torch_describe_block", "the out-pointer is NULL");
  gpumem_torch_block found{sizeof found, -1, 0, {0, 0}, nullptr};
  auto const asked = outcome_with_pools([&](torch_pools& all) { found = all.describe(pointer); });
  if (asked != GPUMEM_GRANTED || gpumem::c::copy_known(found, block)) return asked;
  return gpumem::c::refuse("gpumem_torch_describe_block",
                           "the size in the block is too small: write sizeof(gpumem_torch_block)");
}

gpumem_outcome gpumem_torch_share_block(void const* pointer, char name[GPUMEM_TORCH_NAME_SIZE],
                                        size_t* offset) noexcept {
  if (!name || !offset) return gpumem::c::refuse("gpumem_torch_share_block", "an out-pointer is NULL");
  return outcome_of([&] {
    gpumem::detail::throw_if_child();
    auto const shared = torch_pools::instance().share(pointer);
    if (shared.text.size() >= GPUMEM_TORCH_NAME_SIZE) throw std::length_error{"gpumem: the name is too long"};
    name[shared.text.copy(name, GPUMEM_TORCH_NAME_SIZE - 1)] = '\0';
    *offset = shared.offset;
  });
}

gpumem_outcome gpumem_torch_open_shared(char const* name, int device, void** base) noexcept {
  if (!name || !base) return gpumem::c::refuse("gpumem_torch_open_shared", "an argument is NULL");
  return outcome_of([&] {
    gpumem::detail::throw_if_child();
    *base = opened_pages::instance().open(name, device).base;
  });
}

gpumem_outcome gpumem_torch_close_shared(void* base) noexcept {
  return outcome_of([&] { opened_pages::instance().close(base); });
}

void gpumem_torch_observe_pages(void (*changed)(int device, void* address, size_t bytes, int mapped)) noexcept {
  torch_pools::instance().observe_pages(changed);
}

gpumem_outcome gpumem_torch_visit_ranges(int device,
                                         void (*visit)(void* context, gpumem_range const* range,
                                                       unsigned long long first, unsigned long long second),
                                         void* context) noexcept {
  if (!visit) return gpumem::c::refuse("gpumem_torch_visit_ranges", "the function is NULL");
  return outcome_with_device(device, [&](torch_device& known) {
    known.visit_ranges(
        [&](gpumem_torch_pool_id pool, gpumem_range const& one) { visit(context, &one, pool.first, pool.second); });
  });
}

gpumem_outcome gpumem_torch_read_statistics(int device, gpumem_torch_statistics* statistics) noexcept {
  if (!statistics) return gpumem::c::refuse("gpumem_torch_read_statistics", "the out-pointer is NULL");
  gpumem_torch_statistics now{};
  auto const read = outcome_with_device(device, [&](torch_device& known) { known.read_statistics(now); });
  if (read != GPUMEM_GRANTED || gpumem::c::copy_known(now, statistics)) return read;
  return gpumem::c::refuse("gpumem_torch_read_statistics",
                           "the size in the statistics is too small: write sizeof(gpumem_torch_statistics)");
}

gpumem_outcome gpumem_torch_reset_peaks(int device) noexcept {
  return outcome_with_device(device, [](torch_device& known) { known.reset_peaks(); });
}

gpumem_outcome gpumem_torch_reset_totals(int device) noexcept {
  return outcome_with_device(device, [](torch_device& known) { known.reset_totals(); });
}

void gpumem_torch_empty_cache(void) noexcept {
  outcome_with_pools([](torch_pools& all) { all.trim(); });
}

void* gpumem_torch_allocate(size_t bytes, int device, CUstream_st* stream) {
  void* pointer = nullptr;
  raise_unless_granted(allocate(bytes, bytes, device, stream, 0, pointer));
  return pointer;
}

void gpumem_torch_record_stream(void* pointer, CUstream_st* stream) {
  raise_unless_granted(gpumem_torch_record_block_stream(pointer, stream, -1));
}

void gpumem_torch_memory_fraction(double fraction, int device) {
  raise_unless_granted(gpumem_torch_set_memory_fraction(fraction, device));
}

void gpumem_torch_begin_allocate_to_pool(int device, gpumem_torch_pool_id pool,
                                         std::function<bool(CUstream_st*)> filter) {
  raise_unless_granted(
      outcome_with_pools([&](torch_pools& all) { all.of(device).mem_pools().begin(pool, std::move(filter)); }));
}

void gpumem_torch_end_allocate_to_pool(int device, gpumem_torch_pool_id pool) {
  raise_unless_granted(outcome_with_pools([&](torch_pools& all) { all.of(device).mem_pools().end(pool); }));
}

void gpumem_torch_release_pool(int device, gpumem_torch_pool_id pool) noexcept {
  outcome_with_device(device, [&](torch_device& known) { known.mem_pools().release(pool); });
}

gpumem_outcome gpumem_torch_retain_pool(int device, gpumem_torch_pool_id pool,
                                        gpumem_callbacks const* segments) noexcept {
  return outcome_with_pools([&](torch_pools& all) { all.of(device).mem_pools().retain(pool, segments); });
}

gpumem_outcome gpumem_torch_pool_use_count(int device, gpumem_torch_pool_id pool, int* count) noexcept {
  if (!count) return gpumem::c::refuse("gpumem_torch_pool_use_count", "the out-pointer is NULL");
  return outcome_with_pools([&](torch_pools& all) { *count = all.of(device).mem_pools().use_count(pool); });
}

gpumem_outcome gpumem_torch_use_pool_on_out_of_memory(int device, gpumem_torch_pool_id pool, int use) noexcept {
  return outcome_with_device(device,
                             [&](torch_device& known) { known.mem_pools().set_use_on_out_of_memory(pool, use != 0); });
}

gpumem_outcome gpumem_torch_set_pool_unsplit(int device, gpumem_torch_pool_id pool) noexcept {
  return outcome_with_pools([&](torch_pools& all) { all.of(device).mem_pools().set_unsplit(pool); });
}

gpumem_outcome gpumem_torch_empty_pool(int device, gpumem_torch_pool_id pool) noexcept {
  return outcome_with_device(device, [&](torch_device& known) {
    if (!known.mem_pools().routes()) known.mem_pools().reclaim(pool);
  });
}

gpumem_outcome gpumem_torch_restore_pool(int device, gpumem_torch_pool_id pool, gpumem_range const* live, size_t count,
                                         void (*changed)(void* context, gpumem_range const* range, int now),
                                         void* context) noexcept {
  if ((!live && count > 0) || !changed) return gpumem::c::refuse("gpumem_torch_restore_pool", "an argument is NULL");
  return outcome_with_pools([&](torch_pools& all) {
    all.of(device).restore(pool, {live, count},
                           [&](gpumem_range const& one, bool now) { changed(context, &one, now); });
  });
}
