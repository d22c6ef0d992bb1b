// A program whose pools are published. It writes "ready", and ends when its input does.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

import gpumem;

int main(int count, char** arguments) {
  using namespace gpumem::literals;
  std::string const mode = count > 1 ? arguments[1] : "";
  gpumem::simulator::load();
  gpumem::device const card{0};
  gpumem::stream stream{card};
  gpumem::pool_resource pool{card, {.limit = 64_MiB, .name = "training \"a\""}};
  gpumem::fixed_size_resource blocks{gpumem::cuda_resource{card}};
  void* const block = pool.allocate(stream, 3_MiB);
  std::vector<gpumem::pool_resource<gpumem::cuda_resource>> many;
  while (mode == "many" && many.size() < 118) many.emplace_back(card);
  if (mode == "fork") {
    int status = -1;
    pid_t const child = fork();
    if (child == 0) std::exit(0); // runs the exit functions of the library
    waitpid(child, &status, 0);
    if (status != 0) return 1;
  }
  if (mode == "end") {
    pool.deallocate(stream, block, 3_MiB);
    stream.synchronize();
    pool = gpumem::pool_resource{card, {.name = "second"}};
  }
  std::puts("ready");
  std::fflush(stdout);
  char next = 0;
  while (read(STDIN_FILENO, &next, 1) > 0) {}
  if (mode != "end") pool.deallocate(stream, block, 3_MiB);
  return 0;
}
