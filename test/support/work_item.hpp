// A work item that tests post to executors. Include it after `import gpumem;` and after <functional> and <utility>: it
// includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// Calls a function when it is resumed.
struct item final : gpumem::extend::work_item {
  std::function<void()> body;
  explicit item(std::function<void()> f) : body{std::move(f)} {}
  void resume() noexcept override { body(); }
};

} // namespace test
