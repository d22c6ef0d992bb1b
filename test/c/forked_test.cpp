// The C library in a child that is forked while a thread of its parent holds the library's locks.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem_torch.h>
#include <gpumem/graph_memory.h>
#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace {

constexpr unsigned longest_seconds = 20; // far more than the child needs
constexpr std::size_t bytes = 1000;

// Holds a thread at its first driver call.
class gate {
public:
  void wait_for_thread() {
    std::unique_lock held{mutex_};
    changed_.wait(held, [&] { return inside_; });
  }
  void open() {
    std::scoped_lock const held{mutex_};
    open_ = true;
    changed_.notify_all();
  }
  static void pass(void* self) {
    if (held_back) static_cast<gate*>(self)->wait();
  }
  static thread_local bool held_back;

private:
  void wait() {
    std::unique_lock held{mutex_};
    held_back = false;
    inside_ = true;
    changed_.notify_all();
    changed_.wait(held, [&] { return open_; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool inside_ = false;
  bool open_ = false;
};
thread_local bool gate::held_back = false;

bool told_why() { return std::strstr(gpumem_last_error(), "was forked") != nullptr; }

int call_pools(gpumem_pool* pool, void* block) {
  void* pointer = nullptr;
  gpumem_pool* made = nullptr;
  std::size_t given_back = 1;
  gpumem_statistics statistics{};
  statistics.size = sizeof statistics;
  statistics.live = 1;
  gpumem_block found{};
  found.size = sizeof found;
  found.base = block;
  if (gpumem_make_pool(0, nullptr, &made) != GPUMEM_DEVICE_LOST || !told_why()) return 1;
  if (gpumem_allocate(pool, GPUMEM_STREAM_LEGACY, 1, 1, &pointer) != GPUMEM_DEVICE_LOST || !told_why()) return 2;
  if (gpumem_allocate_sync(pool, 1, 1, &pointer) != GPUMEM_DEVICE_LOST || !told_why()) return 3;
  if (gpumem_free(pool, GPUMEM_STREAM_LEGACY, block) != GPUMEM_GRANTED) return 4;
  if (gpumem_free_sized(pool, GPUMEM_STREAM_LEGACY, block, bytes) != GPUMEM_GRANTED) return 5;
  if (gpumem_free_sync(pool, block, bytes) != GPUMEM_GRANTED) return 6;
  if (gpumem_record_use(pool, block, GPUMEM_STREAM_PER_THREAD) != GPUMEM_GRANTED) return 7;
  if (gpumem_synchronize(pool, 1) != GPUMEM_DEADLINE) return 8;
  if (gpumem_trim(pool, 0, &given_back) != GPUMEM_GRANTED || given_back != 0) return 9;
  if (gpumem_read_statistics(pool, &statistics) != GPUMEM_GRANTED || statistics.live != 0) return 10;
  if (gpumem_find(pool, block, &found) != GPUMEM_GRANTED || found.base) return 11;
  return 0;
}

int call_graph_memory(gpumem_pool* pool, gpumem_graph_memory* memory, gpumem_capture_scope* scope) {
  gpumem_graph_memory* made = nullptr;
  if (gpumem_graph_memory_make(pool, &made) != GPUMEM_DEVICE_LOST || made) return 30;
  std::size_t kept = 1;
  gpumem_capture_scope* opened = nullptr;
  if (gpumem_graph_memory_capture(memory, GPUMEM_STREAM_PER_THREAD, &opened) != GPUMEM_DEVICE_LOST) return 31;
  if (!told_why() || opened) return 32;
  if (gpumem_graph_memory_bytes(memory, &kept) != GPUMEM_GRANTED || kept != 0) return 33;
  if (gpumem_capture_scope_end(scope) != GPUMEM_GRANTED) return 34;
  return gpumem_graph_memory_free(memory) == GPUMEM_GRANTED ? 0 : 35;
}

int call_torch(void* block) {
  gpumem_pool* pool = nullptr;
  gpumem_torch_pool_id const graph{1, 2};
  if (gpumem_torch_configure("") != GPUMEM_GRANTED) return 21;
  if (gpumem_torch_pool(0, &pool) != GPUMEM_GRANTED || pool) return 22;
  if (gpumem_torch_try_allocate(bytes, 0, nullptr) || !told_why()) return 23;
  gpumem_torch_record_stream(block, nullptr);
  gpumem_torch_free(block, bytes, 0, nullptr);
  gpumem_torch_empty_cache();
  gpumem_torch_memory_fraction(.5, 2);
  gpumem_torch_begin_allocate_to_pool(0, graph, nullptr);
  gpumem_torch_end_allocate_to_pool(0, graph);
  gpumem_torch_release_pool(0, graph);
  try {
    gpumem_torch_allocate(bytes, 0, nullptr);
    return 24;
  } catch (std::runtime_error const&) {}
  return 0;
}

TEST(forked_c, child_returns_from_every_function) {
  gpumem::simulator::load({.devices = 3});
  auto* const block = gpumem_torch_try_allocate(bytes, 0, nullptr);
  gpumem_pool* pool = nullptr;
  ASSERT_EQ(gpumem_torch_pool(0, &pool), GPUMEM_GRANTED);
  ASSERT_TRUE(pool && block);
  gpumem_graph_memory* memory = nullptr;
  gpumem_capture_scope* scope = nullptr;
  ASSERT_EQ(gpumem_graph_memory_make(pool, &memory), GPUMEM_GRANTED);
  ASSERT_EQ(gpumem_graph_memory_capture(memory, GPUMEM_STREAM_PER_THREAD, &scope), GPUMEM_GRANTED);
  gate between;
  gpumem::simulator::set_schedule_hooks(gate::pass, nullptr, &between);
  std::thread inside{[] {
    gate::held_back = true;
    gpumem_torch_try_allocate(bytes, 1, nullptr); // makes the device's pool while it holds the lock of all pools
  }};
  between.wait_for_thread();
  auto const child = fork();
  if (child == 0) {
    alarm(longest_seconds);
    auto failed = call_pools(pool, block);
    if (!failed) failed = call_graph_memory(pool, memory, scope);
    _exit(failed ? failed : call_torch(block));
  }
  int status = -1;
  waitpid(child, &status, 0);
  between.open();
  inside.join();
  EXPECT_TRUE(WIFEXITED(status)) << "it hangs";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(gpumem_capture_scope_end(scope), GPUMEM_GRANTED);
  EXPECT_EQ(gpumem_graph_memory_free(memory), GPUMEM_GRANTED);
  gpumem_torch_free(block, bytes, 0, nullptr);
  gpumem::simulator::set_schedule_hooks(nullptr, nullptr, nullptr);
}

} // namespace
