#include <cstdio>
import gpumem;

// The code under test.
void run(auto& memory, gpumem::stream& stream) {
  auto const first = memory.acquire(stream, 1 << 20).wait();
  auto const second = memory.acquire(stream, 2 << 20).wait(); // an exception here must not leak the first
}

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card};
  gpumem::stream stream{card};
  gpumem::failing_adaptor failing{pool};
  unsigned number = 0;
  do {
    failing.restart({.first = ++number}); // refuses this request, and no other
    try {
      run(failing, stream);
    } catch (gpumem::out_of_memory const&) {}
    if (pool.statistics().live != 0) return 1;
  } while (failing.counts().refused != 0);
  std::printf("each of %u requests was refused once, nothing leaked\n", number - 1);
}
