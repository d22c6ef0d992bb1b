// A timer for tests. Include it after `import gpumem;` and after <functional> and <utility>: it includes nothing
// itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// Calls a function when it expires.
struct timed_item final : gpumem::detail::timer {
  std::function<void()> body;
  explicit timed_item(std::function<void()> f) : body{std::move(f)} {}
  void expire() noexcept override { body(); }
};

} // namespace test
