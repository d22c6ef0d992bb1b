// An executor with several threads.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:thread_pool_executor;
import :executor;
import :std;
import :sync;

namespace gpumem {

/// Runs items on several threads of its own, which share one queue: items begin in the order of posting, several at a
/// time. The destructor runs all queued items and then joins the threads, so it must not be called on one of them.
export class thread_pool_executor final : public executor {
public:
  /// Throws std::invalid_argument for 0 threads, std::system_error, std::bad_alloc, and cuda_error in a forked child.
  explicit thread_pool_executor(std::size_t threads);
  thread_pool_executor(thread_pool_executor const&) = delete;
  thread_pool_executor& operator=(thread_pool_executor const&) = delete;
  ~thread_pool_executor();

  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;

  /// Returns the number of threads.
  std::size_t size() const noexcept;

private:
  class state;
  std::unique_ptr<state> state_;
};

} // namespace gpumem
