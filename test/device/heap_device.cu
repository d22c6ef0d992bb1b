// Kernels allocate from a heap on a GPU: every block is stamped and compared. The argument `short` takes fewer threads,
// for compute-sanitizer, and leaves out the kernels that kernels launch. Exits with 77 where there is no GPU.
// SPDX-License-Identifier: Apache-2.0
#include "device_checks.cuh"
#include "heap_kernels.cuh"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;
constexpr unsigned threads_of_block = 256;
static unsigned grid_of(unsigned count) { return (count + threads_of_block - 1) / threads_of_block; }

template <class T> class array {
public:
  explicit array(std::size_t count) {
    CHECK(cudaMalloc(&data_, count * sizeof(T)));
    CHECK(cudaMemset(data_, 0, count * sizeof(T)));
    CHECK(cudaStreamSynchronize(nullptr)); // other streams do not wait for the default stream
  }
  array(array const&) = delete;
  array& operator=(array const&) = delete;
  ~array() { cudaFree(data_); }
  T* data() const { return data_; }
  T first(cudaStream_t stream) const {
    T value;
    CHECK(cudaMemcpyAsync(&value, data_, sizeof value, cudaMemcpyDefault, stream));
    CHECK(cudaStreamSynchronize(stream));
    return value;
  }

private:
  T* data_ = nullptr;
};

// Blocks of a heap, and the kernels over them.
class tester {
public:
  tester(gpumem::heap_view heap, unsigned char const* data, unsigned count)
      : heap_{heap}, data_{data}, blocks_{count}, bytes_{count}, processors_{count}, found_{1}, count_{count} {}

  void allocate(cudaStream_t stream, wanted_sizes wanted, std::uint64_t seed) const {
    allocate_blocks<<<grid_of(count_), threads_of_block, 0, stream>>>(heap_, list(), wanted, seed);
    CHECK(cudaGetLastError());
  }
  void allocate_in_row(cudaStream_t stream, wanted_sizes wanted, std::uint64_t seed) const {
    allocate_in_a_row<<<1, 1, 0, stream>>>(heap_, list(), wanted, seed);
    CHECK(cudaGetLastError());
  }
  void stamp(cudaStream_t stream, std::uint64_t salt) const {
    stamp_blocks<<<grid_of(count_), threads_of_block, 0, stream>>>(list(), salt);
    CHECK(cudaGetLastError());
  }
  void compare(cudaStream_t stream, std::uint64_t salt, std::size_t heap_bytes) const {
    compare_blocks<<<grid_of(count_), threads_of_block, 0, stream>>>(list(), salt, data_, heap_bytes, found_.data());
    CHECK(cudaGetLastError());
  }
  void free(cudaStream_t stream, bool reversed = true) const {
    free_blocks<<<grid_of(count_), threads_of_block, 0, stream>>>(heap_, list(), reversed, found_.data());
    CHECK(cudaGetLastError());
  }
  // Waits for the stream, and returns what the kernels found since the last call.
  findings take_findings(cudaStream_t stream) const {
    auto const found = found_.first(stream);
    CHECK(cudaMemsetAsync(found_.data(), 0, sizeof found, stream));
    return found;
  }
  block_list list() const { return {blocks_.data(), bytes_.data(), processors_.data(), count_}; }
  findings* found() const { return found_.data(); }

private:
  gpumem::heap_view heap_;
  unsigned char const* data_;
  array<unsigned char*> blocks_;
  array<std::size_t> bytes_;
  array<unsigned> processors_;
  array<findings> found_;
  unsigned count_;
};

static bool right(findings const& found) {
  if (found.missing + found.misplaced + found.overwritten == 0) return true;
  std::fprintf(stderr, "%u blocks missing, %u misplaced, %u overwritten of %u\n", found.missing, found.misplaced,
               found.overwritten, found.granted);
  return false;
}

static void require_empty(gpumem::device_heap const& heap, cudaStream_t stream) {
  auto const now = heap.statistics(stream);
  if (now.live != 0 || now.bad_frees != 0)
    std::fprintf(stderr, "%llu blocks live, %llu bad frees\n", static_cast<unsigned long long>(now.live),
                 static_cast<unsigned long long>(now.bad_frees));
  REQUIRE(now.live == 0 && now.live_bytes == 0 && now.large == 0 && now.bad_frees == 0);
}

struct setting {
  gpumem::pool& pool;
  cudaStream_t stream;
  unsigned count;
  bool brief;
};

// Random sizes, runs of slabs among them; other multiprocessors free.
static void blocks_do_not_overlap(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {with.brief ? 256 * MiB : 4 * GiB, 0, "stamps"}};
  tester const blocks{heap.view(), heap.view().data(), with.count};
  unsigned elsewhere = 0;
  for (unsigned round = 0; round < (with.brief ? 2 : 20); ++round) {
    auto const salt = std::uint64_t{round} << 32;
    for (wanted_sizes const& wanted : {wanted_sizes{0, 16, 256}, wanted_sizes{0, 6, 0}, wanted_sizes{16, 0, 0}}) {
      blocks.allocate(with.stream, wanted, salt);
      blocks.stamp(with.stream, salt);
      blocks.compare(with.stream, salt, heap.bytes());
      blocks.free(with.stream);
      auto const found = blocks.take_findings(with.stream);
      REQUIRE(right(found) && found.granted == with.count);
      elsewhere += found.elsewhere;
    }
  }
  REQUIRE(elsewhere > 0);
  REQUIRE(heap.statistics(with.stream).failed == 0);
  require_empty(heap, with.stream);
}

// Gallatin's test of churn: a thread allocates, writes, reads and frees, round after round.
static void churn_keeps_stamps(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {with.brief ? 256 * MiB : 2 * GiB, 0, "churn"}};
  array<findings> found{1};
  for (wanted_sizes const& wanted : {wanted_sizes{0, 12, 0}, wanted_sizes{0, 7, 4096}, wanted_sizes{64, 0, 0}}) {
    churn<<<grid_of(with.count), threads_of_block, 0, with.stream>>>(heap.view(), wanted, with.brief ? 2 : 50, 7,
                                                                     found.data());
    CHECK(cudaGetLastError());
  }
  REQUIRE(right(found.first(with.stream)));
  require_empty(heap, with.stream);
}

// Gallatin's test with a single thread.
static void one_thread_allocates(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {64 * MiB, 0, "one thread"}};
  tester const blocks{heap.view(), heap.view().data(), with.brief ? 200u : 10'000u};
  for (std::size_t const bytes : {16, 100, 4096}) {
    blocks.allocate_in_row(with.stream, {bytes, 0, 0}, 0);
    blocks.stamp(with.stream, 0);
    blocks.compare(with.stream, 0, heap.bytes());
    blocks.free(with.stream);
    REQUIRE(right(blocks.take_findings(with.stream)));
  }
  require_empty(heap, with.stream);
}

// Gallatin's test of more requests than there is memory. Null is counted, no memory is lost, and the heap serves as
// much after the frees.
static void exhaustion_is_counted(setting const& with) {
  for (std::size_t const bytes : {std::size_t{64}, 4 * KiB, 64 * KiB, 200 * KiB}) {
    auto const heap_bytes = (bytes < KiB ? 2 : 64) * MiB;
    auto const whole = bytes <= 64 * KiB ? heap_bytes / bytes : 0; // 0: runs of slabs leave slabs over
    gpumem::device_heap heap{with.pool, with.stream, {heap_bytes, 0, "exhausted"}};
    auto const count = static_cast<unsigned>(heap_bytes / bytes * 2);
    tester const blocks{heap.view(), heap.view().data(), count};
    std::uint64_t failed = 0;
    for (int round = 0; round < (with.brief ? 1 : 3); ++round) {
      blocks.allocate(with.stream, {bytes, 0, 0}, 0);
      // A thread may find nothing while another one holds a slab that is not in a slot yet; a single thread finds all.
      blocks.compare(with.stream, 0, 0);
      failed += blocks.take_findings(with.stream).missing;
      blocks.allocate_in_row(with.stream, {bytes, 0, 0}, 0);
      blocks.stamp(with.stream, 0);
      blocks.compare(with.stream, 0, heap.bytes());
      auto const found = blocks.take_findings(with.stream);
      REQUIRE(found.misplaced == 0 && found.overwritten == 0);
      REQUIRE(whole == 0 ? found.granted > 0 : found.granted == whole);
      auto const now = heap.statistics(with.stream);
      ++failed; // the single thread's last request
      REQUIRE(now.failed == failed && now.largest_failed == bytes && now.live == found.granted);
      blocks.free(with.stream);
      require_empty(heap, with.stream);
    }
  }
}

static void misuse_is_counted(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {64 * MiB, 0, "misuse"}};
  array<int> wrong{1}, foreign{1};
  misuse<<<1, 1, 0, with.stream>>>(heap.view(), foreign.data(), wrong.data());
  CHECK(cudaGetLastError());
  REQUIRE(wrong.first(with.stream) == 0);
  auto now = heap.statistics(with.stream);
#if defined(GPUMEM_DEVICE_HEAP_CHECKS)
  constexpr unsigned bad = 6;
#else
  constexpr unsigned bad = 4; // second frees are not found
#endif
  REQUIRE(now.bad_frees == bad && now.bad_free == reinterpret_cast<std::uintptr_t>(foreign.data()));
  REQUIRE(now.failed == 2 && now.largest_failed == SIZE_MAX && now.live == 0);
#if defined(GPUMEM_DEVICE_HEAP_CHECKS)
  for (std::size_t const bytes : {std::size_t{64}, 64 * KiB}) {
    free_together<<<1, 32, 0, with.stream>>>(heap.view(), bytes);
    CHECK(cudaGetLastError());
  }
  now = heap.statistics(with.stream);
  REQUIRE(now.bad_frees == bad + 2 * 31 && now.live == 0);
#endif
  tester const blocks{heap.view(), heap.view().data(), 1000};
  blocks.allocate(with.stream, {0, 14, 0}, 3);
  blocks.stamp(with.stream, 3);
  blocks.compare(with.stream, 3, heap.bytes());
  blocks.free(with.stream);
  REQUIRE(right(blocks.take_findings(with.stream)));
}

static void objects_live(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {256 * MiB, 0, "objects"}};
  array<findings> found{1};
  auto const threads = with.brief ? 512u : 20'000u;
  make_lists<<<grid_of(threads), threads_of_block, 0, with.stream>>>(heap.view(), 20, found.data());
  CHECK(cudaGetLastError());
  make_arrays<<<grid_of(threads), threads_of_block, 0, with.stream>>>(heap.view(), 77, found.data());
  CHECK(cudaGetLastError());
  REQUIRE(right(found.first(with.stream)));
  require_empty(heap, with.stream);
}

// Blocks stay, and a view from before the growth uses the new memory.
static void growth_adds_memory(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {16 * MiB, 512 * MiB, "growing"}};
  auto const view = heap.view();
  auto const count = static_cast<unsigned>(16 * MiB / (4 * KiB));
  constexpr std::uint64_t early_salt = 0, late_salt = std::uint64_t{1} << 40;
  tester const early{view, view.data(), count}, late{view, view.data(), 8 * count};
  early.allocate(with.stream, {4 * KiB, 0, 0}, 0);
  early.stamp(with.stream, early_salt);
  late.allocate(with.stream, {4 * KiB, 0, 0}, 0); // finds almost nothing
  heap.grow_to(with.stream, 256 * MiB);
  REQUIRE(heap.view().data() == view.data() && heap.bytes() == 256 * MiB);
  late.allocate(with.stream, {4 * KiB, 0, 0}, 0);
  late.allocate_in_row(with.stream, {4 * KiB, 0, 0}, 0);
  late.stamp(with.stream, late_salt);
  late.compare(with.stream, late_salt, heap.bytes());
  REQUIRE(right(late.take_findings(with.stream)));
  early.compare(with.stream, early_salt, heap.bytes());
  auto const found = early.take_findings(with.stream);
  REQUIRE(found.overwritten == 0 && found.misplaced == 0 && found.granted + found.missing == count);
  REQUIRE(found.granted > count / 2);
  late.free(with.stream);
  early.free(with.stream);
  require_empty(heap, with.stream);
}

// A reset comes after the kernels that were launched before it, and before those that come after it.
static void reset_empties(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {16 * MiB, 0, "reset"}};
  auto const count = static_cast<unsigned>(16 * MiB / KiB);
  for (auto const bytes : {KiB, 16 * KiB, 128 * KiB, KiB}) {
    tester const blocks{heap.view(), heap.view().data(), count};
    blocks.allocate(with.stream, {bytes, 0, 0}, 0);
    heap.reset(with.stream);
    auto const now = heap.statistics(with.stream);
    REQUIRE(now.live == 0 && now.failed == 0 && now.bad_frees == 0 && now.free == heap.bytes());
  }
  tester const blocks{heap.view(), heap.view().data(), count};
  blocks.allocate(with.stream, {KiB, 0, 0}, 0);
  blocks.allocate_in_row(with.stream, {KiB, 0, 0}, 0);
  blocks.stamp(with.stream, 0);
  blocks.compare(with.stream, 0, heap.bytes());
  REQUIRE(right(blocks.take_findings(with.stream)));
}

static void streams_share_a_heap(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {with.brief ? 256 * MiB : 2 * GiB, 0, "streams"}};
  CHECK(cudaStreamSynchronize(with.stream));
  constexpr unsigned streams = 4;
  cudaStream_t others[streams];
  std::deque<tester> blocks;
  for (auto& other : others) {
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    blocks.emplace_back(heap.view(), heap.view().data(), with.count / streams);
  }
  for (unsigned round = 0; round < (with.brief ? 2 : 20); ++round)
    for (unsigned i = 0; i < streams; ++i) {
      auto const salt = std::uint64_t{round * streams + i} << 32;
      blocks[i].allocate(others[i], {0, 13, 1000}, salt);
      blocks[i].stamp(others[i], salt);
      blocks[i].compare(others[i], salt, heap.bytes());
      blocks[i].free(others[i]);
    }
  for (unsigned i = 0; i < streams; ++i) {
    REQUIRE(right(blocks[i].take_findings(others[i])));
    CHECK(cudaStreamSynchronize(others[i]));
    CHECK(cudaStreamDestroy(others[i]));
  }
  require_empty(heap, with.stream);
}

static void graphs_replay(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {128 * MiB, 512 * MiB, "graphs"}};
  tester const blocks{heap.view(), heap.view().data(), with.brief ? 1'000u : 20'000u};
  CHECK(cudaStreamSynchronize(with.stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runnable = nullptr;
  CHECK(cudaStreamBeginCapture(with.stream, cudaStreamCaptureModeThreadLocal));
  for (std::uint64_t salt : {1, 2}) {
    blocks.allocate(with.stream, {0, 11, 0}, salt);
    blocks.stamp(with.stream, salt << 32);
    blocks.compare(with.stream, salt << 32, 512 * MiB);
    blocks.free(with.stream);
  }
  CHECK(cudaStreamEndCapture(with.stream, &graph));
  CHECK(cudaGraphInstantiate(&runnable, graph, 0));
  for (int i = 0; i < (with.brief ? 2 : 100); ++i) {
    if (i == 50) heap.grow_to(with.stream, 512 * MiB);
    CHECK(cudaGraphLaunch(runnable, with.stream));
  }
  REQUIRE(right(blocks.take_findings(with.stream)));
  require_empty(heap, with.stream);
  CHECK(cudaGraphExecDestroy(runnable));
  CHECK(cudaGraphDestroy(graph));
}

// The child frees the parent's blocks of its part of the threads, and allocates others.
__global__ void child(gpumem::heap_view heap, block_list old, block_list made, unsigned first, std::uint64_t salt,
                      findings* found) {
  auto const i = first + threadIdx.x;
  if (i >= old.count || old.blocks[i] == nullptr) return;
  if (!has_stamp(old.blocks[i], old.bytes[i], salt + i, 0, 1)) atomicAdd(&found->overwritten, 1);
  heap.deallocate(old.blocks[i]);
  old.blocks[i] = nullptr;
  made.bytes[i] = size_of({0, 10, 0}, salt * 3 + i);
  made.blocks[i] = static_cast<unsigned char*>(heap.allocate(made.bytes[i]));
  if (made.blocks[i] == nullptr)
    atomicAdd(&found->missing, 1);
  else
    write_stamp(made.blocks[i], made.bytes[i], salt + i + made.count, 0, 1);
}

// The parent frees what children of the last launch have allocated. Its children free what it allocates: one may run
// beside it and beyond its block's end, and the other begins after its end and that of the first.
__global__ void parent(gpumem::heap_view heap, block_list own, block_list made, block_list last, std::uint64_t salt,
                       findings* found) {
  auto const i = thread_number();
  if (i < own.count) {
    heap.deallocate(last.blocks[i]);
    last.blocks[i] = nullptr;
    own.bytes[i] = size_of({0, 10, 0}, salt + i);
    own.blocks[i] = static_cast<unsigned char*>(heap.allocate(own.bytes[i]));
    if (own.blocks[i] == nullptr)
      atomicAdd(&found->missing, 1);
    else
      write_stamp(own.blocks[i], own.bytes[i], salt + i, 0, 1);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  auto const first = blockIdx.x * blockDim.x;
  child<<<1, blockDim.x, 0, cudaStreamFireAndForget>>>(heap, own, made, first, salt, found);
  child<<<1, blockDim.x, 0, cudaStreamTailLaunch>>>(heap, made, last, first, salt + own.count, found);
  if (cudaGetLastError() != cudaSuccess) atomicAdd(&found->misplaced, 1);
}

static void children_share_a_heap(setting const& with) {
  gpumem::device_heap heap{with.pool, with.stream, {512 * MiB, 0, "children"}};
  auto const count = 128 * threads_of_block;
  tester const own{heap.view(), heap.view().data(), count}, made{heap.view(), heap.view().data(), count},
      last{heap.view(), heap.view().data(), count};
  for (std::uint64_t round = 0; round < 20; ++round) {
    parent<<<grid_of(count), threads_of_block, 0, with.stream>>>(heap.view(), own.list(), made.list(), last.list(),
                                                                 round << 32, own.found());
    CHECK(cudaGetLastError());
    REQUIRE(right(own.take_findings(with.stream)));
  }
  REQUIRE(heap.statistics(with.stream).live == count); // those of the last children
  last.free(with.stream);
  require_empty(heap, with.stream);
}

int main(int count, char** values) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: there is no GPU");
    return 77;
  }
  bool const brief = count > 1 && std::strcmp(values[1], "short") == 0;
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    gpumem::pool pool{0, "limit=8GiB"};
    setting const with{pool, stream, brief ? 4'000u : 200'000u, brief};
    struct {
      char const* name;
      void (*run)(setting const&);
    } const tests[]{{"blocks do not overlap", blocks_do_not_overlap}, {"churn keeps stamps", churn_keeps_stamps},
                    {"one thread allocates", one_thread_allocates},   {"exhaustion is counted", exhaustion_is_counted},
                    {"misuse is counted", misuse_is_counted},         {"objects live", objects_live},
                    {"growth adds memory", growth_adds_memory},       {"reset empties", reset_empties},
                    {"streams share a heap", streams_share_a_heap},   {"graphs replay", graphs_replay},
                    {"children share a heap", children_share_a_heap}};
    for (auto const& each : tests) {
      if (brief && each.run == children_share_a_heap) continue; // compute-sanitizer does not see all of them
      each.run(with);
      CHECK(cudaStreamSynchronize(stream));
      std::printf("ok: %s\n", each.name);
      std::fflush(stdout);
    }
    REQUIRE(pool.statistics().live == 0);
  }
  CHECK(cudaStreamDestroy(stream));
}
