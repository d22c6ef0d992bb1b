// A program for a debugger. It starts each kind of thread of the library and checks the names, and calls inspect() with
// objects of each type that has a printer.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
import gpumem;

namespace {

std::set<std::string> thread_names() {
  std::set<std::string> names;
  for (auto const& thread : std::filesystem::directory_iterator{"/proc/self/task"}) {
    std::string name;
    std::getline(std::ifstream{thread.path() / "comm"}, name);
    names.insert(name);
  }
  return names;
}

// A new thread gives itself its name, so the others may see it a moment later.
bool has_names(std::set<std::string> const& expected) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  for (;;) {
    auto missing = expected;
    for (auto const& name : thread_names()) missing.erase(name);
    if (missing.empty()) return true;
    if (std::chrono::steady_clock::now() > end) {
      for (auto const& name : missing) std::printf("no thread is named %s\n", name.c_str());
      return false;
    }
    std::this_thread::yield();
  }
}

gpumem::task<int> answer() { co_return 42; }
gpumem::task<> failing() {
  throw std::runtime_error{"no answer"};
  co_return;
}
gpumem::task<> wait_for(gpumem::stream& stream, gpumem::executor& resumes) {
  co_await gpumem::completion(stream, {.resume_on = &resumes});
}

bool start_threads(gpumem::stream& stream) {
  gpumem::default_executor();
  gpumem::thread_executor one;
  gpumem::thread_pool_executor several{2};
  gpumem::simulator::work(stream, {});
  std::atomic<bool> over{false};
  std::thread waiting{[&] {
    gpumem::sync_wait(wait_for(stream, several));
    over = true;
  }};
  bool const named = has_names({"gpumem-library", "gpumem-executor", "gpumem-worker", "gpumem-poll-0"});
  while (!over) gpumem::simulator::run_until_idle(); // the reactor may enqueue its event only now
  waiting.join();
  return named;
}

struct objects {
  gpumem::pool_resource<gpumem::cuda_resource> pool;
  gpumem::pool_resource<gpumem::cuda_resource> moved_from;
  gpumem::allocation block;
  gpumem::allocation empty;
  gpumem::stream stream;
  gpumem::stream_ref legacy;
  gpumem::task<int> begun;
  gpumem::task<int> ended;
  gpumem::task<> failed;
  gpumem::acquire_options options;
};

} // namespace

extern "C" [[gnu::noinline]] void inspect([[maybe_unused]] objects& all) { asm volatile("" ::: "memory"); }

int main() {
  gpumem::simulator::load({.mode = gpumem::simulator::stepping::manual});
  gpumem::pool_resource pool{gpumem::device{0}, {.limit = std::size_t{8} << 30, .name = "weights"}};
  gpumem::stream stream{gpumem::device{0}};
  bool const named = start_threads(stream);
  auto block = gpumem::sync_wait(pool.acquire(stream, 3 << 20));
  auto other = pool;
  objects all{pool,     other,    std::move(block), {}, std::move(stream), gpumem::stream_ref{CU_STREAM_LEGACY},
              answer(), answer(), failing(),        {}};
  [[maybe_unused]] auto const gone = std::move(all.moved_from);
  gpumem::sync_wait(all.ended);
  try {
    gpumem::sync_wait(all.failed);
  } catch (std::runtime_error const&) {}
  inspect(all);
  return named ? 0 : 1;
}
