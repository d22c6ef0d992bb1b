// Dense thread numbers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <functional>
#include <mutex>
#include <queue>
#include <vector>
module gpumem:sync.impl;
import :sync;

namespace gpumem::sync {
namespace {

// Leaked on purpose: threads may end after static destruction has begun.
struct number_registry {
  std::mutex guard;
  std::priority_queue<unsigned, std::vector<unsigned>, std::greater<>> returned;
  unsigned next = 0;
};

number_registry& numbers() {
  static auto* const registry = new number_registry;
  return *registry;
}

struct number_holder {
  unsigned value;
  number_holder() {
    auto& registry = numbers();
    std::scoped_lock const held{registry.guard};
    if (registry.returned.empty()) {
      value = registry.next++;
    } else {
      value = registry.returned.top();
      registry.returned.pop();
    }
  }
  ~number_holder() {
    auto& registry = numbers();
    std::scoped_lock const held{registry.guard};
    registry.returned.push(value);
  }
};

} // namespace

unsigned thread_number() noexcept {
  thread_local number_holder const holder;
  return holder.value;
}

} // namespace gpumem::sync
