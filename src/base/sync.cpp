// The slow paths of locks, and thread indices.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cxxabi.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <new>
#include <queue>
#include <thread>
#include <utility>
#include <vector>
extern "C" void* __dso_handle;
extern "C" char const gpumem_debugging;
module gpumem:sync.impl;
import :sync;
import :process;

namespace gpumem::detail::sync {
namespace {

// Every program links this file. By this reference it also links debugging.cpp, whose data only debuggers read.
[[gnu::used]] char const* const debugging = &gpumem_debugging;

inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Spins for a while and then yields the processor.
void wait_while(std::atomic<bool> const& taken) noexcept {
  constexpr int max_spins = 100;
  for (int spins = 0; taken.load(std::memory_order_acquire); ++spins) {
    if (spins < max_spins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// The indices that ended threads have given back, and the next new index. Never freed: threads may end after static
// destruction has begun.
struct number_registry {
  sync::mutex mutex;
  std::priority_queue<unsigned, std::vector<unsigned>, std::greater<>> returned GPUMEM_GUARDED_BY(mutex);
  unsigned next GPUMEM_GUARDED_BY(mutex) = 0;
};

// Takes no host memory, since a noexcept function calls it first.
number_registry& numbers() noexcept {
  alignas(number_registry) static std::byte place[sizeof(number_registry)];
  static auto* const registry = ::new (place) number_registry;
  return *registry;
}

struct number_holder {
  number_holder() {
    auto& registry = numbers();
    lock const held{registry.mutex};
    if (registry.returned.empty()) {
      detail::own_index = registry.next++;
    } else {
      detail::own_index = registry.returned.top();
      registry.returned.pop();
    }
  }
  ~number_holder() {
    if (gpumem::detail::forked()) return;
    auto& registry = numbers();
    lock const held{registry.mutex};
    auto const index = std::exchange(detail::own_index, no_index);
    try {
      registry.returned.push(index);
    } catch (std::bad_alloc const&) {} // no later thread gets the index
  }
};

// Returns whether the kernel can interrupt the owner threads of biased mutexes (membarrier). A biased mutex is cheap
// for its owner thread, as long as no other thread requests it. Asks the kernel once.
bool owners_can_be_stopped() noexcept {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return false; // ThreadSanitizer does not see the order that the kernel makes
#endif
#endif
  static bool const registered = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  return registered;
}

} // namespace

void spin_mutex::lock_taken() noexcept {
  // Waits by reading only, so that the cache line stays shared while another thread holds the lock.
  do wait_while(taken_);
  while (!try_lock());
}

// A waiting thread locks `mutex_` before it unlocks the outer mutexes. Since notify_all() locks `mutex_` too, it cannot
// run between that unlock and the wait, and no notification is lost.
void spin_condition::notify_all() noexcept {
  std::scoped_lock const inner{mutex_};
  native_.notify_all();
}

void biased_mutex::enable_bias() noexcept { biased_ = owners_can_be_stopped(); }

// After the call, each owner thread sees the request of the calling thread, or the calling thread sees that the owner
// holds the lock.
void biased_mutex::fence_owner_threads() noexcept {
  if (!owners_can_be_stopped()) return;
  while (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
    std::this_thread::yield(); // the kernel has no memory
}

void biased_mutex::lock_revoked() noexcept {
  if (!biased_) return others_.lock();
  wait_while(taken_);
}

void biased_mutex::unlock_revoked() noexcept {
  revoke_requested_.store(false, std::memory_order_release);
  if (!biased_) others_.unlock();
}

void biased_mutex::lock_requested() noexcept {
  do {
    taken_.store(false, std::memory_order_release);
    wait_while(revoke_requested_);
    taken_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } while (revoke_requested_.load(std::memory_order_acquire));
}

// If the host has no memory for the record of the function, glibc ends the process. This trial allocation throws
// std::bad_alloc first. Its bytes do not stay in the thread's own cache of malloc, which glibc would not search.
void at_thread_exit(void (*function)() noexcept) {
  constexpr std::size_t beyond_the_cache = 2048;
  ::operator delete(::operator new(beyond_the_cache)); // a plain call, which no compiler may remove
  auto* const as_argument = reinterpret_cast<void*>(function);
  auto const call = [](void* given) { reinterpret_cast<void (*)() noexcept>(given)(); };
  if (abi::__cxa_thread_atexit(call, as_argument, &__dso_handle) != 0) throw std::bad_alloc{};
}

unsigned detail::take_index() noexcept {
  gpumem::detail::set_in_use();
  thread_local number_holder const holder;
  return own_index;
}

} // namespace gpumem::detail::sync
