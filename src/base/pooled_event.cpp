// The spare events of all contexts.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
module gpumem:pooled_event.impl;
import :pooled_event;
import :cuda;
import :device;
import :driver;
import :sync;
import :tuning;

namespace gpumem::detail {
namespace {

// The spare events of all contexts, newest first. A plain list, since a process has few contexts.
struct event_store {
  sync::mutex mutex;
  pooled_event* spare __attribute__((guarded_by(mutex))) = nullptr;
  int count __attribute__((guarded_by(mutex))) = 0;

  void count_one(int change) noexcept __attribute__((requires_capability(mutex))) {
    count += change;
    bool const few = count < tuning::spare_events;
    if (spares_low.load(std::memory_order_relaxed) != few) spares_low.store(few, std::memory_order_relaxed);
  }
};

// Takes no host memory, since noexcept functions call it.
event_store& events() noexcept {
  alignas(event_store) static std::byte place[sizeof(event_store)];
  static auto* const store = ::new (place) event_store;
  return *store;
}

pooled_event* create_event(CUcontext context, bool reused = true) {
  auto event = std::make_unique<pooled_event>(pooled_event{nullptr, context, nullptr, reused});
  context_guard const here{context};
  check(here.result(), "cuCtxPushCurrent");
  check(driver().event_create(&event->handle, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  return event.release();
}

int count_spare_events(CUcontext context, int enough) noexcept {
  auto& store = events();
  sync::lock const held{store.mutex};
  int found = 0;
  for (auto const* event = store.spare; event && found < enough; event = event->next)
    found += event->context == context;
  return found;
}

} // namespace

pooled_event* take_spare_event(CUcontext context) noexcept {
  auto& store = events();
  sync::lock const held{store.mutex};
  for (auto** link = &store.spare; *link; link = &(*link)->next) {
    if ((*link)->context != context) continue;
    auto* const event = *link;
    *link = event->next;
    event->next = nullptr;
    store.count_one(-1);
    return event;
  }
  return nullptr;
}

pooled_event* take_event(CUcontext context) {
  auto* const spare = take_spare_event(context);
  return spare ? spare : create_event(context);
}

pooled_event* make_unrecorded_event(CUcontext context) { return create_event(context, false); }

void give_event(pooled_event* event) noexcept {
  if (!event->reused) {
    if (driver_alive()) driver().event_destroy(event->handle);
    delete event;
    return;
  }
  auto& store = events();
  sync::lock const held{store.mutex};
  event->next = store.spare;
  store.spare = event;
  store.count_one(1);
}

void make_spare_events(CUcontext context) {
  for (int missing = tuning::spare_events - count_spare_events(context, tuning::spare_events); missing > 0; --missing) {
    give_event(create_event(context));
  }
}

} // namespace gpumem::detail
