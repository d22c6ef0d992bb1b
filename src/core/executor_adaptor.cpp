// The queue between gpumem and a job system.
// SPDX-License-Identifier: Apache-2.0
module;
#include <memory>
#include <mutex>
#include <utility>
module gpumem:executor_adaptor.impl;
import :executor_adaptor;
import :driver;
import :executor;
import :fork;
import :sync;

namespace gpumem::detail {

adapted_queue::adapted_queue() {
  refuse_child();
  note_use();
}

void adapted_queue::push(resumption& item) noexcept {
  sync::lock const held{guard_};
  queue_.push(item);
}

bool adapted_queue::remove(resumption& item) noexcept {
  if (forked()) return false;
  sync::lock const held{guard_};
  return queue_.remove(item);
}

bool adapted_queue::run_one() noexcept {
  if (forked()) return false;
  resumption* item = nullptr;
  {
    sync::lock const held{guard_};
    item = queue_.pop();
  }
  if (item) item->resume();
  return item != nullptr;
}

void adapted_queue::rescue() noexcept {
  sync::lock const held{guard_};
  if (rescuer_.keeps) return; // on its way
  rescuer_.keeps = shared_from_this();
  library_executor().post(rescuer_);
}

// From here on a rescue posts anew.
void adapted_queue::rescuer::resume() noexcept {
  std::shared_ptr<adapted_queue> from;
  {
    sync::lock const held{keeps->guard_};
    from.swap(keeps);
  }
  while (from->run_one()) {}
}

} // namespace gpumem::detail
