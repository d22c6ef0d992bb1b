#include <cstdio>
#include <string>
import gpumem;
import gpumem.snapshot;

int main(int, char** arguments) {
  gpumem::device const card{0};
  gpumem::pool_resource pool{card, {.name = "training"}};
  gpumem::stream stream{card};

  gpumem::scope forward{pool, "forward"}; // names its blocks
  auto weights = pool.acquire(stream, 3 << 20, {.label = "weights"}).wait();
  auto activations = forward.acquire(stream, 1 << 20).wait();
  void* const state = pool.allocate(stream, 2 << 20);
  pool.set_label(state, "optimizer");

  auto const seen = gpumem::take_snapshot(pool);
  for (auto const& block : seen.blocks) {
    bool const live = block.state == gpumem::memory_state::live;
    std::printf("%8zu bytes: %s\n", block.bytes, live ? seen.labels[block.label].c_str() : "free");
  }
  std::string const path = std::string{arguments[0]} + ".json";
  gpumem::write_snapshot(seen, path);
  gpumem::write_snapshot(seen, path + ".pickle", gpumem::snapshot_format::pickle);
  pool.deallocate(stream, state, 2 << 20);
}
