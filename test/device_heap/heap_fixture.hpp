// A fixture for tests of heaps for kernels: kernels of one thread, and statistics. Include it after
// `import gpumem.device_heap;` and the support headers: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

class heap_fixture : public growable_fixture {
protected:
  using heap = gpumem::device_heap;
  static constexpr std::size_t slab = std::size_t{64} << 10;
  static constexpr std::size_t stamped = 4096; // the bytes of each block that kernels write

  // Returns the bytes of metadata for a heap of this size.
  static std::size_t metadata_of(heap const& of) { return of.view().layout().end(of.bytes() / slab); }
  // Enqueues a kernel that may touch all memory of the heap. The simulated device reports it if that is not mapped, or
  // if other work on it is not ordered.
  template <class Body> static void kernel(gpumem::stream& on, heap const& of, Body body) {
    auto const view = of.view();
    gpumem::simulator::work(
        on,
        {gpumem::simulator::write(view.data(), of.bytes()), gpumem::simulator::write(view.metadata(), metadata_of(of))},
        {}, [view, body] {
          heap_thread thread{view};
          body(thread);
        });
  }
  // Enqueues a kernel that allocates blocks until one is refused or `most` are there, and stamps them.
  static void fill_on(gpumem::stream& on, heap const& of, std::size_t bytes, std::vector<void*>& blocks,
                      std::size_t most = SIZE_MAX) {
    kernel(on, of, [&blocks, bytes, most](heap_thread& thread) {
      while (blocks.size() < most) {
        auto* const block = thread.allocate(bytes);
        if (!block) return;
        std::memset(block, static_cast<int>(blocks.size()), std::min(bytes, stamped));
        blocks.push_back(block);
      }
    });
  }
  static void free_on(gpumem::stream& on, heap const& of, std::vector<void*> const& blocks) {
    kernel(on, of, [blocks](heap_thread& thread) {
      for (auto* const block : blocks) thread.deallocate(block);
    });
  }
  static gpumem::device_heap_statistics read(gpumem::stream& on, heap& of) {
    running_device const steps;
    auto const seen = gpumem::sync_wait(of.statistics(on));
    on.synchronize(); // a test ends after its kernels, even if the statistics do not wait
    return seen;
  }
  // Expects that the pool lends no more than the heap of that size needs, beyond pages that a growth maps in advance.
  static void expect_unchanged(pool& of, std::size_t lent, heap const& that, std::size_t bytes) {
    EXPECT_EQ(that.bytes(), bytes);
    EXPECT_EQ(of.statistics().lent, lent);
    EXPECT_TRUE(is_consistent(of));
  }
};

} // namespace gpumem_test
