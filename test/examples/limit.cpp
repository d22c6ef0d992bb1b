#include <chrono>
#include <cstdio>
import gpumem;
using namespace gpumem::literals;

int main() {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.limit = 64_MiB, .name = "cache"}};
  gpumem::stream stream{card};
  auto held = pool.acquire(stream, 48_MiB).wait();

  try {
    static_cast<void>(pool.allocate(stream, 32_MiB)); // fails: `allocate` does not wait for other requests' frees
  } catch (gpumem::out_of_memory const& e) {
    std::printf("%s: %zu bytes are live\n", gpumem::to_string(e.reason()), e.info().live);
  }

  auto const soon = std::chrono::steady_clock::now() + std::chrono::milliseconds{20};
  auto const late = pool.acquire(stream, 32_MiB).wait_until(soon); // waits in line, for a while
  std::printf("%s\n", gpumem::to_string(late.error().reason));

  pool.set_limit(128_MiB);
  auto const block = pool.acquire(stream, 32_MiB).wait();
  std::printf("%s of %s\n", gpumem::format_bytes(pool.statistics().live).c_str(),
              gpumem::format_bytes(pool.statistics().limit).c_str());
}
