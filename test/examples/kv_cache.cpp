#include <cstdio>
#include <vector>
import gpumem;
import gpumem.growable;
using namespace gpumem::literals;

constexpr std::size_t block_bytes = 2_MiB, blocks = 1000;

// A key/value cache. A block that no sequence uses has an address, and no memory.
class paged_cache {
public:
  paged_cache(gpumem::pool_resource<gpumem::cuda_resource>& pool, gpumem::stream& stream) : stream_{stream} {
    constexpr auto most = blocks * block_bytes;
    memory_ = {pool, stream, {.reserve = most, .initial = most, .discarded = true, .page = block_bytes}};
    for (auto block = blocks; block > 0;) unused_.push_back(--block);
  }
  gpumem::task<std::size_t> add_block() { // waits in the pool's line while the card is full; one call at a time
    auto const block = unused_.back();
    co_await memory_.restore(stream_, block * block_bytes, block_bytes); // if it throws, the block stays unused
    std::erase(unused_, block);
    co_return block;
  }
  void remove_block(std::size_t block) { // its memory goes once the stream's work on it is complete
    memory_.discard(stream_, block * block_bytes, block_bytes);
    unused_.push_back(block);
  }
  gpumem::stream& stream_;
  gpumem::growable_buffer memory_;
  std::vector<std::size_t> unused_;
};

int main() {
  gpumem::pool_resource pool{gpumem::device{0}, {.limit = 64_MiB}};
  gpumem::stream stream{gpumem::device{0}};
  paged_cache cache{pool, stream};
  for (int i = 0; i < 20; ++i) gpumem::sync_wait(cache.add_block());
  for (std::size_t block = 0; block < 20; block += 2) cache.remove_block(block);
  std::printf("%zu of %zu MiB are mapped\n", cache.memory_.mapped_bytes() >> 20, cache.memory_.bytes() >> 20);
}
