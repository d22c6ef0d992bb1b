#include <chrono>
#include <cstdio>
import gpumem;

void report(gpumem::misuse const& found) noexcept {
  char text[2000];
  gpumem::describe(found, text, sizeof text);
  std::printf("%s\n", text);
}

int main() {
  gpumem::set_misuse_handler(report); // without it the text goes to stderr, and the process aborts
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.hardened = {.enabled = true}}};
  gpumem::stream stream{card};

  auto* const block = static_cast<char*>(pool.allocate(stream, 1000));
  auto const address = reinterpret_cast<gpumem::driver_api::CUdeviceptr>(block);
  gpumem::driver_api::driver().memset_d8_async(address, 0, 1001, stream.get()); // one byte too many
  pool.deallocate(stream, block, 1000);
  pool.deallocate(stream, block, 1000); // found at once; the call does nothing

  stream.synchronize();
  pool.synchronize(std::chrono::seconds{1});
  pool.trim(); // empties the quarantine: the guards of its blocks are checked
}
