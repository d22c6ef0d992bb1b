#include <cstdio>
#include <gpumem/pool.hpp>

int main() {
  gpumem::pool_options options;
  options.limit = std::size_t{8} << 30;
  gpumem::pool pool{0, options}; // or gpumem::pool{0, "limit=8GiB"}; copies share the pool
  CUstream_st* stream = nullptr; // any cudaStream_t; null is the default stream
  {
    gpumem::pool_block block = pool.acquire(stream, 64 << 20); // waits for memory if there is none
    std::printf("%zu bytes at %p\n", block.bytes(), block.data());
  } // freed in stream order
  try {
    void* too_much = pool.allocate(stream, std::size_t{9} << 30);
    pool.deallocate(stream, too_much, std::size_t{9} << 30);
  } catch (gpumem::out_of_memory const& e) { // a std::bad_alloc
    std::printf("%zu bytes are more than the limit of %zu\n", e.info().requested, e.info().limit);
  }
}
