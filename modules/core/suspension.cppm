// A suspended coroutine that another thread decides to resume and its owner may destroy before that.
// SPDX-License-Identifier: Apache-2.0
module;
#include <coroutine>
export module gpumem:suspension;
import :coroutine;
import :executor;

namespace gpumem::detail {

// Whoever decides a suspended operation posts it and may not touch it afterwards, since it may run and be gone at once.
// Whoever destroys it must know that the post is over. Both pass through a gate that outlives all operations.
//
// posted_ | written by the decider, under the gate, before the post
// false   | nobody has decided, or somebody is about to post
// true    | it is in the executor's queue, or runs, or has run
//
// A coroutine that its executor has begun to resume must not be destroyed by another thread: nobody can make that safe.
class suspension : public resumption {
public:
  explicit suspension(executor* where) noexcept : executor_{where} {}

protected:
  ~suspension() = default;

  // Before anybody can decide it. Without an executor it resumes on the library thread, which is started if need be:
  // throws std::system_error, std::bad_alloc.
  void prepare(std::coroutine_handle<> continuation);

  // By the one who decided it; the last touch.
  void post() noexcept;

  // By the one who destroys it, when somebody else has decided it: waits until it is posted, then takes it back.
  void take_back() noexcept;

private:
  void resume() noexcept final { continuation_.resume(); }

  executor* executor_;
  std::coroutine_handle<> continuation_;
  unsigned gate_ = 0;
  bool posted_ = false;
};

} // namespace gpumem::detail
