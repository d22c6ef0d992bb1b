// A program that includes nothing: `import gpumem;` is enough to write coroutines.
// SPDX-License-Identifier: Apache-2.0
import gpumem;

namespace {

gpumem::task<int> half(int value) { co_return value / 2; }

gpumem::task<int> sum(int a, int b) {
  auto [x, y] = co_await gpumem::when_all(half(a), half(b));
  co_return x + y;
}

// A coroutine type of the user needs no header either.
struct fire {
  struct promise_type {
    fire get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() {}
  };
};

fire store(int* place) { *place = co_await sum(40, 44); }

} // namespace

int main() {
  int stored = 0;
  store(&stored);
  return stored == 42 && gpumem::sync_wait(sum(1, 2)) == 1 ? 0 : 1;
}
