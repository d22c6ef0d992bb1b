// A user's program: memory from a resource, on the simulated device of the package.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

import gpumem;

namespace {

// Returns whether this process has loaded the installed library.
bool comes_from(std::string_view stage) {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  if (maps == nullptr) return false;
  std::string text;
  char part[4096];
  for (std::size_t got = 0; (got = std::fread(part, 1, sizeof part, maps)) > 0;) text.append(part, got);
  std::fclose(maps);
  return text.find(std::string{stage} + "/") != std::string::npos;
}

} // namespace

int main(int, char** arguments) {
  gpumem::simulator::load();
  gpumem::stream stream{gpumem::device{0}};
  gpumem::cuda_resource resource;
  void* pointer = resource.allocate(stream, 1 << 20);
  resource.deallocate(stream, pointer, 1 << 20);
  stream.sync();
  if (pointer == nullptr || !comes_from(arguments[1])) return 1;
  std::puts("allocated and freed 1 MiB on the simulated device");
}
