// An executor on several threads.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:thread_pool_executor;
import :executor;
import :std;
import :sync;

namespace gpumem {

/// Runs on threads of its own, which take from one queue: begun in the order of posting, and several at a time. The
/// destructor runs what is queued, then joins; it must not run on one of those threads.
export class thread_pool_executor final : public executor {
public:
  /// Throws std::invalid_argument for no threads, std::system_error, std::bad_alloc.
  explicit thread_pool_executor(std::size_t threads);
  thread_pool_executor(thread_pool_executor const&) = delete;
  thread_pool_executor& operator=(thread_pool_executor const&) = delete;
  ~thread_pool_executor();

  void post(work_item& item) noexcept override;
  bool try_cancel(work_item& item) noexcept override;

  /// How many threads.
  std::size_t size() const noexcept;

private:
  class state;
  std::unique_ptr<state> state_;
};

} // namespace gpumem
