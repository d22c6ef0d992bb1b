// A coroutine, compiled, linked and run: the minimum for a compiler.
// SPDX-License-Identifier: Apache-2.0
#include <coroutine>
#include <memory>
#include <string>

struct task {
  struct promise_type {
    task get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }
  };
};

task run(std::string& text) {
  co_await std::suspend_never{};
  text = "done";
}

int main() {
  auto text = std::make_unique<std::string>();
  run(*text);
  return *text == "done" ? 0 : 1;
}
