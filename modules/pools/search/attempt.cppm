// The result of one attempt to get memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdint>
export module gpumem:attempt;
import :error;
import :std;

namespace gpumem::detail {

/// A value, a failure, or neither. If neither, other threads have changed the pool meanwhile, and the caller must
/// search again.
export template <class T> class attempt {
public:
  static attempt retry() noexcept { return {state::retry, {}, {}}; }
  attempt(T found) noexcept : attempt{state::done, found, {}} {}
  attempt(unexpected<failure> const& why) noexcept : attempt{state::failed, {}, why.error()} {}

  inline bool is_done() const noexcept { return what_ == state::done; }
  inline bool must_retry() const noexcept { return what_ == state::retry; }
  inline bool has_failed() const noexcept { return what_ == state::failed; }
  /// Called only if is_done().
  inline T value() const noexcept { return found_; }
  /// Called only if has_failed().
  inline failure const& error() const noexcept { return why_; }

private:
  enum class state : std::uint8_t { done, retry, failed };
  attempt(state what, T found, failure const& why) noexcept : what_{what}, found_{found}, why_{why} {}

  state what_;
  T found_;
  failure why_;
};

} // namespace gpumem::detail
