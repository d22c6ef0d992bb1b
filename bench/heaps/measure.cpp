// SPDX-License-Identifier: Apache-2.0
#include "measure.hpp"

#include "stamp.hpp"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

namespace heaps {
namespace {

constexpr unsigned kept = 4, rounds = 16; // of the churn: blocks of a thread, rounds of a launch
constexpr unsigned single_thread_blocks = 10'000;
constexpr std::size_t exhausted_heap = std::size_t{1} << 30;
constexpr unsigned exhausted_block = 1024;

// Memory of the device, set to zeros.
template <typename T> class array {
public:
  explicit array(std::uint64_t count) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "allocate an array");
    check(cudaMemset(data_, 0, count * sizeof(T)), "clear an array");
    check(cudaStreamSynchronize(nullptr), "wait for the array"); // other streams do not wait for the default stream
  }
  array(array const&) = delete;
  array& operator=(array const&) = delete;
  ~array() { cudaFree(data_); }
  T* data() const { return data_; }

private:
  T* data_ = nullptr;
};

class stream_owner {
public:
  stream_owner() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream"); }
  stream_owner(stream_owner const&) = delete;
  stream_owner& operator=(stream_owner const&) = delete;
  ~stream_owner() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

private:
  cudaStream_t stream_ = nullptr;
};

// The device's time of work on a stream.
class timer {
public:
  timer() {
    check(cudaEventCreate(&begin_), "create an event");
    check(cudaEventCreate(&end_), "create an event");
  }
  timer(timer const&) = delete;
  timer& operator=(timer const&) = delete;
  ~timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  double microseconds(cudaStream_t stream, auto&& launch) {
    hold(stream);
    check(cudaEventRecord(begin_, stream), "record an event");
    launch();
    check(cudaEventRecord(end_, stream), "record an event");
    check(cudaEventSynchronize(end_), "wait for the kernels");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "read the device's time");
    return milliseconds * 1e3;
  }

private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

double median(std::vector<double> values) {
  if (values.empty()) return -1;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// One test over one heap. CUDA's heap has its size from the first load of a kernel on, until the device is reset: so
// everything is made anew for each test.
class session {
public:
  session(heap_kind const& kind, std::size_t heap_bytes, std::uint64_t blocks, options const& with)
      : with_{with}, heap_bytes_{heap_bytes}, heap_{kind.make(heap_bytes, stream_)}, addresses_{blocks}, bytes_{blocks},
        found_{1}, overwritten_{1} {
    check(cudaStreamSynchronize(stream_), "wait for the heap");
  }

  // A heap that reuses nothing has only tests that restart it. The long run needs a heap that tells what is lost.
  bool possible(test_kind kind) {
    if (kind == test_kind::endure) return heap_->in_use(stream_).has_value();
    return heap_->reuses() || kind == test_kind::allocate || kind == test_kind::single_thread;
  }

  bool keeps_context() const { return heap_->keeps_context(); }

  result allocate(test const& which, bool single_thread) {
    result measured;
    block_list const blocks{addresses_.data(), nullptr, single_thread ? single_thread_blocks : which.threads,
                            which.pattern};
    std::vector<double> allocations, frees;
    auto const turn = [&](double& allocation, double& free) {
      heap_->restart(stream_);
      allocation = timer_.microseconds(stream_, [&] { heap_->allocate(blocks, single_thread, stream_); });
      stamp_and_compare(blocks, measured);
      free = timer_.microseconds(stream_, [&] { heap_->deallocate(blocks, single_thread, stream_); });
    };
    turn(measured.allocate_cold, measured.free_cold);
    repeat(measured, [&] { turn(allocations.emplace_back(), frees.emplace_back()); });
    measured.allocate_warm = median(allocations);
    measured.free_warm = median(frees);
    return measured;
  }

  result churn(test const& which) {
    result measured;
    auto const blocks = kept_blocks(which);
    measured.churn_cold = replace(blocks, which.threads, 0);
    stamp_and_compare(blocks, measured);
    std::vector<double> times;
    repeat(measured, [&] {
      times.push_back(replace(blocks, which.threads, times.size() + 1));
      stamp_and_compare(blocks, measured);
    });
    measured.churn_warm = median(times);
    measured.operations_per_microsecond = 2. * rounds * which.threads / measured.churn_warm;
    count_use(measured);
    finish_churn(blocks, measured);
    return measured;
  }

  // Asks for twice what the heap has, frees all that it got, and asks again.
  result exhaust(test const& which) {
    result measured;
    block_list const blocks{addresses_.data(), nullptr, which.threads, which.pattern};
    for (double* const served : {&measured.served, &measured.served_again}) {
      heap_->allocate(blocks, false, stream_);
      auto const found = stamp_and_compare(blocks, measured);
      *served = static_cast<double>(found.bytes) / static_cast<double>(heap_bytes_);
      heap_->deallocate(blocks, false, stream_);
    }
    measured.missing = 0;
    count_use(measured);
    return measured;
  }

  result endure(test const& which) {
    result measured;
    auto const blocks = kept_blocks(which);
    std::uint64_t done = 0;
    double microseconds = 0;
    for (std::uint64_t launch = 0; done < with_.operations; ++launch) {
      microseconds += replace(blocks, which.threads, launch);
      done += 2 * std::uint64_t{rounds} * which.threads;
      stamp_and_compare(blocks, measured);
    }
    measured.operations = static_cast<double>(done);
    measured.operations_per_microsecond = measured.operations / microseconds;
    count_use(measured);
    finish_churn(blocks, measured);
    return measured;
  }

private:
  block_list kept_blocks(test const& which) const {
    return {addresses_.data(), bytes_.data(), std::uint64_t{kept} * which.threads, which.pattern};
  }
  double replace(block_list const& blocks, unsigned threads, std::uint64_t seed) {
    return timer_.microseconds(
        stream_, [&] { heap_->churn(blocks, threads, rounds, seed << 40, overwritten_.data(), stream_); });
  }
  // Frees all blocks, after which nothing may be live.
  void finish_churn(block_list const& blocks, result& measured) {
    heap_->deallocate(blocks, false, stream_);
    if (auto const now = heap_->in_use(stream_)) measured.lost_bytes = static_cast<double>(now->live);
    unsigned long long overwritten = 0;
    check(cudaMemcpyAsync(&overwritten, overwritten_.data(), sizeof overwritten, cudaMemcpyDefault, stream_), "copy");
    check(cudaStreamSynchronize(stream_), "wait for the kernels");
    measured.overwritten += overwritten;
  }
  void count_use(result& measured) {
    auto const now = heap_->in_use(stream_);
    if (now && now->slabs != 0) measured.utilization = static_cast<double>(now->live) / static_cast<double>(now->slabs);
  }
  findings stamp_and_compare(block_list const& blocks, result& measured) {
    findings found;
    write_stamps(blocks, stream_);
    check(cudaMemsetAsync(found_.data(), 0, sizeof found, stream_), "clear what was found");
    compare_stamps(blocks, found_.data(), stream_);
    check(cudaMemcpyAsync(&found, found_.data(), sizeof found, cudaMemcpyDefault, stream_), "copy what was found");
    check(cudaStreamSynchronize(stream_), "wait for the kernels that compare");
    measured.missing += found.missing;
    measured.misaligned += found.misaligned;
    measured.overwritten += found.overwritten;
    return found;
  }
  void repeat(result& measured, auto&& turn) {
    using clock = std::chrono::steady_clock;
    auto const end = clock::now() + std::chrono::duration<double>(with_.seconds);
    do { turn(); } while (++measured.repeats < with_.repeats && clock::now() < end);
  }

  options const& with_;
  std::size_t heap_bytes_;
  stream_owner stream_;
  timer timer_;
  std::unique_ptr<heap> heap_;
  array<void*> addresses_;
  array<unsigned> bytes_;
  array<findings> found_;
  array<unsigned long long> overwritten_;
};

} // namespace

std::string test::label() const {
  std::ostringstream text;
  switch (kind) {
  case test_kind::none: break;
  case test_kind::allocate: text << threads << " threads, "; break;
  case test_kind::single_thread: text << "one thread, " << single_thread_blocks << " blocks, "; break;
  case test_kind::churn: text << threads << " threads, " << kept << " blocks each, "; break;
  case test_kind::exhaust: text << threads << " threads, a heap of 1 GiB, "; break;
  case test_kind::endure: text << threads << " threads, long run, "; break;
  }
  switch (pattern.which) {
  case sizes::kind::one:
    if (pattern.bytes < 1024)
      text << pattern.bytes << " B";
    else
      text << pattern.bytes / 1024 << " KiB";
    break;
  case sizes::kind::uniform: text << "mixed"; break;
  case sizes::kind::small_heavy: text << "mostly small"; break;
  }
  return std::move(text).str();
}

std::vector<test> tests_of(options const& with) {
  std::vector<test> all;
  sizes const uniform{sizes::kind::uniform}, small{sizes::kind::small_heavy};
  all.push_back({test_kind::single_thread, 1, {}});
  for (auto const threads : with.threads) {
    for (auto const bytes : with.bytes) all.push_back({test_kind::allocate, threads, {sizes::kind::one, bytes}});
    for (auto const& mix : {uniform, small}) all.push_back({test_kind::allocate, threads, mix});
  }
  for (auto const threads : with.threads) {
    all.push_back({test_kind::churn, threads, {sizes::kind::one, 64}});
    for (auto const& mix : {uniform, small}) all.push_back({test_kind::churn, threads, mix});
  }
  all.push_back({test_kind::exhaust, 2 * exhausted_heap / exhausted_block, {sizes::kind::one, exhausted_block}});
  if (with.operations != 0) all.push_back({test_kind::endure, with.threads.back(), uniform});
  return all;
}

std::string result::fault() const {
  std::ostringstream text;
  if (overwritten != 0) text << overwritten << " blocks overlap others; ";
  if (misaligned != 0) text << misaligned << " addresses are no multiple of 16; ";
  if (missing != 0) text << missing << " requests got null; ";
  if (served_again >= 0 && served_again < .95 * served)
    text << "serves " << served_again / served << " of it after a free of all; ";
  if (lost_bytes > 0) text << lost_bytes << " bytes are lost; ";
  auto found = std::move(text).str();
  if (!found.empty()) found.resize(found.size() - 2);
  return found;
}

std::string to_line(result const& from) {
  std::ostringstream line;
  for (double const value : {from.allocate_cold, from.allocate_warm, from.free_cold, from.free_warm, from.churn_cold,
                             from.churn_warm, from.utilization, from.served, from.served_again, from.operations,
                             from.operations_per_microsecond, from.lost_bytes})
    line << value << ' ';
  line << from.missing << ' ' << from.misaligned << ' ' << from.overwritten << ' ' << from.repeats << ' ' << from.note;
  return std::move(line).str();
}

result from_line(std::string const& line) {
  result to;
  std::istringstream text{line};
  for (double* const value :
       {&to.allocate_cold, &to.allocate_warm, &to.free_cold, &to.free_warm, &to.churn_cold, &to.churn_warm,
        &to.utilization, &to.served, &to.served_again, &to.operations, &to.operations_per_microsecond, &to.lost_bytes})
    text >> *value;
  text >> to.missing >> to.misaligned >> to.overwritten >> to.repeats;
  text.ignore(1);
  std::getline(text, to.note);
  return to;
}

result measure(heap_kind const& kind, test const& which, options const& with) {
  result measured;
  auto const bytes = which.kind == test_kind::exhaust ? exhausted_heap : with.heap_bytes;
  auto const blocks = std::max<std::uint64_t>(std::uint64_t{kept} * which.threads, single_thread_blocks);
  // After an error the session stays: destructors of some allocators end the process before the error is told.
  auto* const run = new session{kind, bytes, blocks, with};
  switch (run->possible(which.kind) ? which.kind : test_kind::none) {
  case test_kind::none: measured.note = not_possible; break;
  case test_kind::allocate: measured = run->allocate(which, false); break;
  case test_kind::single_thread: measured = run->allocate(which, true); break;
  case test_kind::churn: measured = run->churn(which); break;
  case test_kind::exhaust: measured = run->exhaust(which); break;
  case test_kind::endure: measured = run->endure(which); break;
  }
  bool const stays = run->keeps_context();
  delete run;
  if (!stays) check(cudaDeviceReset(), "reset the context");
  return measured;
}

} // namespace heaps
