// The process: whether it is a forked child, and switches in its environment variables.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:process;
import :std;

namespace gpumem::detail {

enum class process_kind : std::uint8_t {
  unused, // gpumem has taken no lock, started no thread and made no driver call
  in_use,
  child, // forked from a process that was in use; never changes
};
inline constinit std::atomic<process_kind> this_process{process_kind::unused};

/// Returns true in a child that was forked from a process in which gpumem was in use. In the child, gpumem's locks may
/// be held for ever, by threads that do not exist there, and the driver does not serve the child. So every public
/// function calls forked() before it takes a lock. A function that makes something or waits throws (`throw_if_child`);
/// any other function does nothing.
export inline bool forked() noexcept { return this_process.load(std::memory_order_relaxed) == process_kind::child; }

/// Notes that gpumem is in use: children that are forked from now on cannot use it. Called before the first lock, the
/// first thread and the first driver call.
export inline void set_in_use() noexcept {
  auto before = process_kind::unused;
  if (this_process.load(std::memory_order_relaxed) == before) {
    this_process.compare_exchange_strong(before, process_kind::in_use);
  }
}

// Returns whether the variable is `1` or `on`. Returns false if it is unset, empty, `0` or `off`. Throws
// std::invalid_argument for any other value.
bool is_set_in_environment(char const* variable);

} // namespace gpumem::detail
