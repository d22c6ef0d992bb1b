#include <chrono>
#include <cstdio>
#include <gpumem/pool.hpp>

int main() {
  gpumem::pool_options options;
  options.limit = std::size_t{64} << 20;
  gpumem::pool pool{0, options};       // copies share the pool, also with other shared libraries of the process
  CUstream_st* const stream = nullptr; // any cudaStream_t; null is the default stream
  gpumem::pool_block const block = pool.acquire(stream, 48 << 20);
  try {
    auto const more = pool.acquire(stream, 32 << 20, std::chrono::milliseconds{1});
  } catch (gpumem::acquire_error const& e) { std::printf("the second block: %s\n", gpumem::to_string(e.reason())); }
  std::printf("%zu bytes live\n", pool.statistics().live);
}
