// gpumem-growth-bench: buffers that grow in place. Growth beside kernels, growth inside mapped pages, a cache that
// grows in small steps, and shrinking and growing again; beside the driver's calls made by hand, and beside a new
// allocation with a copy.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
import gpumem.growable;
import replay;

namespace {

using gpumem::driver_api::check;
using gpumem::driver_api::driver;
using clock_type = std::chrono::steady_clock;
using pool_type = gpumem::pool_resource<gpumem::cuda_resource>;
using gpumem::growable_buffer;
constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;

double milliseconds_of(auto call) {
  auto const begin = clock_type::now();
  call();
  return std::chrono::duration<double, std::milli>(clock_type::now() - begin).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Pages that are mapped by the driver's calls, without gpumem.
class mapped_by_hand {
public:
  mapped_by_hand(gpumem::device device, std::size_t most, std::size_t page)
      : device_{device}, most_{most}, page_{page} {
    check(driver().mem_address_reserve(&base_, most, 0, 0, 0), "reserve addresses");
  }
  mapped_by_hand(mapped_by_hand const&) = delete;
  mapped_by_hand& operator=(mapped_by_hand const&) = delete;
  ~mapped_by_hand() {
    shrink();
    driver().mem_address_free(base_, most_);
  }
  void grow(std::size_t bytes) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_.ordinal();
    CUmemAccessDesc const access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    auto const begin = handles_.size() * page_;
    for (auto end = begin + bytes; handles_.size() * page_ < end;) {
      CUmemGenericAllocationHandle made = 0;
      check(driver().mem_create(&made, page_, &properties, 0), "create a page");
      check(driver().mem_map(base_ + handles_.size() * page_, page_, 0, made, 0), "map a page");
      handles_.push_back(made);
    }
    check(driver().mem_set_access(base_ + begin, bytes, &access, 1), "set the access");
  }
  void shrink() {
    for (std::size_t i = 0; i < handles_.size(); ++i) {
      driver().mem_unmap(base_ + i * page_, page_);
      driver().mem_release(handles_[i]);
    }
    handles_.clear();
  }

private:
  gpumem::device device_;
  std::size_t most_, page_;
  CUdeviceptr base_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
};

// Kernels that write memory as fast as it goes, and the device time of all of them.
class kernels {
public:
  kernels(gpumem::stream& stream, void* target, std::size_t bytes, unsigned count)
      : stream_{stream}, target_{reinterpret_cast<CUdeviceptr>(target)}, bytes_{bytes}, count_{count} {
    check(driver().event_create(&begin_, 0), "create an event");
    check(driver().event_create(&end_, 0), "create an event");
  }
  kernels(kernels const&) = delete;
  kernels& operator=(kernels const&) = delete;
  ~kernels() {
    driver().event_destroy(begin_);
    driver().event_destroy(end_);
  }
  void launch() {
    check(driver().event_record(begin_, stream_.get()), "record an event");
    for (unsigned i = 0; i < count_; ++i)
      check(driver().memset_d32_async(target_, i, bytes_ / 4, stream_.get()), "launch a kernel");
    check(driver().event_record(end_, stream_.get()), "record an event");
  }
  double finish() {
    check(driver().event_synchronize(end_), "wait for the kernels");
    float milliseconds = 0;
    check(driver().event_elapsed_time(&milliseconds, begin_, end_), "read the device's time");
    return milliseconds;
  }

private:
  gpumem::stream& stream_;
  CUdeviceptr target_;
  std::size_t bytes_;
  unsigned count_;
  CUevent begin_ = nullptr, end_ = nullptr;
};

class bench {
public:
  bench(gpumem::device device, bool simulated, unsigned rounds)
      : device_{device}, stream_{device}, simulated_{simulated}, rounds_{rounds} {}

  void run() {
    grow_beside_kernels();
    grow_inside_pages();
    grow_in_small_steps();
    for (std::size_t const page : {32 * MiB, 512 * MiB}) shrink_and_grow(page);
    give_to_another_buffer();
  }

private:
  // Prints a row: a time, or on the simulated device the pages that were made since the last row.
  void row(char const* name, double milliseconds, std::string const& note = {}) {
    if (simulated_) {
      std::printf("%-62s %6llu pages made\n", name, static_cast<unsigned long long>(pages_made() - seen_));
    } else {
      std::printf("%-62s %10.4f ms  %s\n", name, milliseconds, note.c_str());
    }
    seen_ = pages_made();
    std::fflush(stdout);
  }
  // Prints a row of something else than gpumem, which the simulated device leaves out.
  void peer_row(char const* name, double milliseconds, std::string const& note = {}) {
    if (!simulated_) row(name, milliseconds, note);
  }
  static std::uint64_t pages_made() { return gpumem::driver_api::driver_calls("cuMemCreate"); }
  void settle(pool_type& pool) {
    stream_.synchronize();
    pool.trim();
  }

  void grow_beside_kernels() {
    pool_type pool{device_};
    growable_buffer buffer{pool, stream_, {.reserve = 64 * GiB, .initial = 4 * GiB}};
    kernels beside{stream_, buffer.data(), simulated_ ? 4 * KiB : GiB, 400};
    beside.launch();
    static_cast<void>(beside.finish());
    std::vector<double> alone, together, hand_together, ours, hand, copied;
    mapped_by_hand other{device_, 64 * GiB, 512 * MiB};
    auto const grow = [&] {
      beside.launch();
      ours.push_back(milliseconds_of([&] { buffer.resize(stream_, 5 * GiB); }));
      together.push_back(beside.finish());
      buffer.shrink_to(stream_, 4 * GiB);
      settle(pool);
    };
    auto const grow_by_hand = [&] {
      beside.launch();
      hand.push_back(milliseconds_of([&] { other.grow(GiB); }));
      hand_together.push_back(beside.finish());
      other.shrink();
    };
    // In turns, since the driver makes pages more slowly shortly after others were released.
    for (unsigned i = 0; i < rounds_; ++i) {
      beside.launch();
      alone.push_back(beside.finish());
      if (i % 2 == 0 || simulated_) grow();
      if (!simulated_) grow_by_hand();
      if (i % 2 == 1 && !simulated_) grow();
    }
    for (unsigned i = 0; i < rounds_ && !simulated_; ++i) copied.push_back(copy_to_larger());
    auto const share = [&](double device) { return "kernels " + std::to_string(device / median(alone)) + " x alone"; };
    row("grow from 4 to 5 GiB beside kernels", median(ours), share(median(together)));
    peer_row("... the driver's calls by hand, pages of 512 MiB", median(hand), share(median(hand_together)));
    peer_row("... cudaMalloc of 5 GiB, copy, cudaFree", median(copied));
  }
  double copy_to_larger() {
    CUdeviceptr before = 0, after = 0;
    check(driver().mem_alloc(&before, 4 * GiB), "allocate");
    auto const spent = milliseconds_of([&] {
      check(driver().mem_alloc(&after, 5 * GiB), "allocate");
      check(driver().memcpy_dtod_async(after, before, 4 * GiB, stream_.get()), "copy");
      check(driver().stream_synchronize(stream_.get()), "wait");
      check(driver().mem_free(before), "free");
    });
    check(driver().mem_free(after), "free");
    return spent;
  }

  // Each round has 256 steps of 64 KiB within what is mapped in advance.
  void grow_inside_pages() {
    pool_type pool{device_};
    growable_buffer buffer{pool, stream_, {.reserve = 64 * GiB, .initial = GiB}};
    std::vector<double> spent;
    for (unsigned i = 0; i < rounds_ * 20; ++i) {
      buffer.shrink_to(stream_, GiB);
      buffer.resize(stream_, GiB + 1);
      auto const calls = gpumem::driver_api::driver_calls();
      spent.push_back(milliseconds_of([&] {
                        for (std::size_t step = 1; step <= 256; ++step)
                          static_cast<void>(buffer.try_grow_to(stream_, GiB + step * 64 * KiB));
                      }) /
                      256);
      if (gpumem::driver_api::driver_calls() != calls) std::puts("growth inside mapped pages called the driver");
    }
    row("grow by 64 KiB inside mapped pages", median(spent), std::to_string(median(spent) * 1e6) + " ns");
  }

  void grow_in_small_steps() {
    std::vector<double> spent;
    double excess = 0;
    for (unsigned i = 0; i < (simulated_ ? 1 : rounds_); ++i) {
      pool_type pool{device_};
      growable_buffer cache{pool, stream_, {.reserve = 64 * GiB}};
      spent.push_back(milliseconds_of([&] {
        for (std::size_t used = MiB; used <= 40 * GiB; used += MiB) {
          cache.resize(stream_, used);
          auto const reserved = static_cast<double>(cache.mapped_bytes());
          excess = std::max(excess, reserved - 1.02 * static_cast<double>(used));
        }
      }));
      cache.shrink_to(stream_, 0);
      settle(pool);
    }
    row("grow to 40 GiB by 1 MiB, all calls", median(spent),
        "reserved at most 1.02 x used + " + std::to_string(excess / static_cast<double>(MiB)) + " MiB");
  }

  void shrink_and_grow(std::size_t page) {
    pool_type pool{device_};
    growable_buffer buffer{pool, stream_, {.reserve = 8 * GiB, .initial = 8 * GiB, .page = page}};
    mapped_by_hand other{device_, 8 * GiB, page};
    std::vector<double> kept, returned, hand;
    for (unsigned i = 0; i < rounds_; ++i) {
      stream_.synchronize();
      kept.push_back(milliseconds_of([&] {
        buffer.shrink_to(stream_, 0);
        buffer.resize(stream_, 8 * GiB);
      }));
      returned.push_back(milliseconds_of([&] { buffer.shrink_to(stream_, 0); }));
      stream_.synchronize();
      returned.back() += milliseconds_of([&] {
        pool.trim();
        buffer.resize(stream_, 8 * GiB);
      });
      buffer.shrink_to(stream_, 0);
      settle(pool);
      if (!simulated_) {
        other.grow(8 * GiB);
        hand.push_back(milliseconds_of([&] {
          other.shrink();
          other.grow(8 * GiB);
        }));
        other.shrink();
      }
      buffer.resize(stream_, 8 * GiB);
    }
    std::printf("8 GiB in pages of %zu MiB\n", page / MiB);
    row("... shrink to 0 and grow again", median(kept));
    row("... with trim() between", median(returned), std::to_string(median(returned) / median(hand)) + " x by hand");
    peer_row("... the driver's calls by hand", median(hand));
  }

  // The second buffer has no memory but that of the first one.
  void give_to_another_buffer() {
    pool_type pool{device_, {.limit = 8 * GiB}};
    gpumem::growable_options const options{.reserve = 8 * GiB, .page = 32 * MiB};
    growable_buffer one{pool, stream_, options}, two{pool, stream_, options};
    std::vector<double> given;
    one.resize(stream_, 8 * GiB);
    for (unsigned i = 0; i < rounds_; ++i) {
      given.push_back(milliseconds_of([&] { one.shrink_to(stream_, 0); }));
      stream_.synchronize();
      given.back() += milliseconds_of([&] { two.resize(stream_, 8 * GiB); });
      std::swap(one, two);
    }
    row("... shrink, and grow another buffer at a limit of 8 GiB", median(given), "in pages of 32 MiB");
  }

  gpumem::device device_;
  gpumem::stream stream_;
  bool simulated_;
  unsigned rounds_;
  std::uint64_t seen_ = 0;
};

} // namespace

int main(int count, char** arguments) {
  CLI::App app{"Buffers that grow in place, beside the driver's calls made by hand. Needs 45 GiB of the device."};
  std::map<std::string, replay::device_choice> const devices{{"auto", replay::device_choice::automatic},
                                                             {"cuda", replay::device_choice::cuda},
                                                             {"simulated", replay::device_choice::simulated}};
  auto choice = replay::device_choice::automatic;
  unsigned rounds = 5;
  app.add_option("--device", choice, "cuda, simulated or auto")->transform(CLI::CheckedTransformer(devices));
  app.add_option("--rounds", rounds, "number of rounds, of which the medians are shown")->check(CLI::Range(1, 1'000));
  CLI11_PARSE(app, count, arguments);
  try {
    auto const where = replay::choose_device(choice);
    gpumem::device_guard const here{where.device};
    std::puts(where.simulated ? "the simulated device: pages are counted, no times are shown" : where.name.c_str());
    bench{where.device, where.simulated, rounds}.run();
    return 0;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem-growth-bench: %s\n", error.what());
    return 1;
  }
}
