#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
import gpumem;
using namespace gpumem::literals;

auto in_use() { return gpumem::device{0}.memory().total - gpumem::device{0}.memory().free; } // by all programs

void walk(char const* name, bool keeps, auto make) {
  gpumem::stream stream{gpumem::device{0}};
  auto const before = in_use();
  auto const tell = [&](char const* when, bool kept, auto give_back) {
    for (int i = 0; i < 1000 && !kept && in_use() != before; ++i, give_back())
      std::this_thread::sleep_for(std::chrono::milliseconds{1}); // gpumem's own thread may give memory back
    std::printf("%-10s  %-7s  %s\n", name, when, gpumem::format_bytes(in_use() - before).c_str());
    if ((in_use() != before) != kept) std::exit(1);
  };
  {
    auto memory = make(gpumem::cuda_resource{});
    auto* const small = memory.allocate(stream, 100_KiB);
    auto* const large = memory.allocate(stream, 8_MiB);
    tell("live", true, [] {});
    memory.deallocate(stream, small, 100_KiB);
    memory.deallocate(stream, large, 8_MiB);
    stream.synchronize();
    tell("freed", keeps, [] {});
    tell("trimmed", false, [&] { gpumem::trim(memory); });
    memory.deallocate(stream, memory.allocate(stream, 8_MiB), 8_MiB);
  }
  tell("ended", false, [] {});
}

int main() {
  walk("direct", false, [](auto cuda) { return cuda; });
  walk("pool", true, [](auto cuda) { return gpumem::pool_resource{cuda}; });
  walk("binning", true, [](auto cuda) { return gpumem::binning_resource{gpumem::pool_resource{cuda}, {10, 20}}; });
  walk("fixed size", true, [](auto cuda) { return gpumem::fixed_size_resource{cuda, {8_MiB, 4}}; });
  walk("driver", true, [](auto) { return gpumem::async_resource{}; });
}
