// The demo: what the library is, in one screen. Recorded traces run over four allocators, batches wait for each other's
// memory, and the simulated device finds a missing order. On that device each run prints the same.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
import replay;

namespace {

namespace simulator = gpumem::simulator;

constexpr int status_failed = 1; // a part did not show what it should
constexpr int status_usage = 2;  // the command line is wrong

constexpr std::string_view usage = R"(usage: gpumem_demo [--simulated] TRACE...
Shows in one screen what the library is: recorded traces over four allocators,
batches that wait for each other's memory, and a missing order that the
simulated device finds.
  --simulated  use the simulated device, even if there is a GPU
  --help       print this text
"bash cmake/run.sh demo" gives the traces of bench/traces.
"bash cmake/run.sh demo -v [ARGUMENT...]" prints, after this screen, the long
tables of gpumem-replay, which gets the arguments ("demo -v --help" lists them).
)";

// The allocators of the table, as replay::resource_names() has them. The pool with effort=1 moves pages whatever the
// time that it takes, so its figures are the same on each machine.
struct column {
  std::string_view title;
  std::string_view resource;
};
constexpr std::array<column, 4> columns{{{"cuMemAlloc", "cuda"},
                                         {"driver's pool", "driver_pool"},
                                         {"pool over chunks", "pool_chunks"},
                                         {"pool, effort=1", "pool_effort_1"}}};

// The need of one trace, or the sums of all traces, over one allocator.
struct need {
  double live = 0, reserved = 0; // bytes
  double operations = 0;
  double cost = 0; // of all operations: driver calls, or nanoseconds where there are times

  void add(need const& other) {
    live += other.live;
    reserved += other.reserved;
    operations += other.operations;
    cost += other.cost;
  }
};

need need_of(replay::result const& row) {
  auto const operations = static_cast<double>(row.operations);
  return {.live = static_cast<double>(row.peak_live_bytes),
          .reserved = static_cast<double>(row.peak_reserved_bytes),
          .operations = operations,
          .cost = operations * (row.times ? row.times->warm : row.driver_calls_warm / 1000)};
}

struct table_row {
  std::string trace;
  std::array<need, columns.size()> over;
};

struct table {
  std::vector<table_row> rows;
  std::map<std::string, std::uint64_t> pool_calls; // of the last column, by the driver's function
};

// Measures a pass to warm up and one more; the figures of the second are shown.
table measure(std::vector<std::string> const& files, replay::chosen_device const& where) {
  table all;
  replay::options chosen;
  chosen.repeat = 1;
  replay::progress shown{files.size() * columns.size() * replay::passes_of(chosen, where.simulated), stderr};
  for (std::string const& file : files) {
    replay::loaded_trace const trace{replay::trace_name(file), file,
                                     replay::make_plan(replay::read_trace_file(file), file)};
    all.rows.push_back({trace.name, {}});
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (where.simulated) simulator::clear_driver_calls();
      all.rows.back().over[i] = need_of(replay::measure_by_name(
          {.trace = &trace, .resource = columns[i].resource, .chosen = &chosen, .where = &where, .shown = &shown}));
      if (where.simulated) replay::accept_unordered(trace.operations.frees_elsewhere != 0);
    }
    if (!where.simulated) continue;
    for (auto const& [name, calls] : simulator::report().driver_calls) all.pool_calls[name] += calls;
  }
  return all;
}

void print(table_row const& row, int digits) {
  std::printf("%-19s", row.trace.c_str());
  for (need const& of : row.over) {
    std::printf("%8.2f%5.2f%7.*f", of.reserved / (1 << 30), of.live / of.reserved, digits, of.cost / of.operations);
  }
  std::puts("");
}

// Returns the sums of all traces.
table_row print_table(std::vector<table_row> const& rows, bool simulated) {
  table_row all{"all", {}};
  std::printf("%-19s", "");
  for (column const& each : columns) std::printf("%20s", each.title.data());
  std::printf("\n%-19s", "trace");
  for (std::size_t i = 0; i < columns.size(); ++i) std::printf("%8s%5s%7s", "GiB", "use", simulated ? "calls" : "ns");
  std::puts("");
  for (table_row const& row : rows) {
    print(row, simulated ? 2 : 0);
    for (std::size_t i = 0; i < columns.size(); ++i) all.over[i].add(row.over[i]);
  }
  print(all, simulated ? 2 : 0);
  return all;
}

void print_cost(need const& pool, std::map<std::string, std::uint64_t> const& calls) {
  std::uint64_t sum = 0;
  for (auto const& [name, count] : calls) sum += count;
  auto const asked = calls.find("cuStreamIsCapturing");
  double const share = asked == calls.end() ? 0 : static_cast<double>(asked->second) / static_cast<double>(sum);
  std::printf("   The pool's cost: %.0f driver calls for %.0f operations. %.0f %% of its calls are\n"
              "   cuStreamIsCapturing, which asks whether a stream is being captured; the device does nothing.\n",
              pool.cost, pool.operations, 100 * share);
}

void show_traces(std::vector<std::string> const& files, replay::chosen_device const& where) {
  std::printf("1. %zu recorded PyTorch programs over four allocators. GiB: most memory reserved; use: utilization,\n"
              "   peak live / peak reserved; %s for an operation, an allocation or a free.\n\n",
              files.size(), where.simulated ? "calls: driver calls" : "ns: time");
  auto const measured = measure(files, where);
  auto const all = print_table(measured.rows, where.simulated);
  std::puts("\n   cuMemAlloc: cuda_resource, which sets the context and waits for the stream at each free;\n"
            "   driver's pool: cuMemAllocFromPoolAsync; pool over chunks: pool_resource with .pages = false;\n"
            "   pool: pool_resource, over virtual pages; with effort=1 its figures do not depend on time.");
  if (where.simulated) print_cost(all.over.back(), measured.pool_calls);
  std::puts("");
}

// Sixty-four batches want four times the limit together. Each waits in line until there is memory for it.
constexpr std::size_t batches = 64;
constexpr std::size_t batch_bytes = std::size_t{16} << 20;
constexpr std::size_t limit = batches * batch_bytes / 4;

using pool_type = gpumem::pool_resource<gpumem::cuda_resource>;

// Counts itself when the batch ends, however it ends.
struct ended {
  std::atomic<std::size_t>& count;
  ~ended() { ++count; }
};

gpumem::task<> batch(pool_type memory, gpumem::stream& stream, std::atomic<std::size_t>& done) {
  ended const counted{done};
  gpumem::allocation const block = co_await memory.acquire(stream, batch_bytes);
  gpumem::driver_api::check(
      gpumem::driver_api::driver().memset_d8_async(block.address(), 0, block.bytes(), stream.get()), "fill a batch");
  co_await gpumem::completion(stream);
} // frees the block, so that the next batch goes on

// Counts the batches that wait after all have begun. Then lets the simulated device run until all have ended.
gpumem::task<> watch(pool_type memory, std::uint64_t& waited, std::atomic<std::size_t>& done, bool simulated) {
  waited = memory.statistics().waiting;
  while (simulated && done < batches) {
    simulator::run_until_idle();
    std::this_thread::yield();
  }
  co_return;
}

bool show_waiting(replay::chosen_device const& where) {
  // Nothing completes before all batches have begun, so that the number of those that wait is the same each time.
  if (where.simulated) simulator::reset({.mode = simulator::stepping::manual});
  pool_type memory{where.device, {.limit = limit}};
  std::vector<gpumem::stream> streams;
  for (std::size_t i = 0; i < batches; ++i) streams.emplace_back(where.device);
  std::atomic<std::size_t> done{0};
  std::uint64_t waited = 0;
  std::vector<gpumem::task<>> all;
  for (gpumem::stream& stream : streams) all.push_back(batch(memory, stream, done));
  all.push_back(watch(memory, waited, done, where.simulated));
  gpumem::sync_wait(gpumem::when_all(std::move(all)));

  auto const seen = memory.statistics();
  std::printf("2. %zu batches of %zu MiB under a limit of %zu MiB, a fourth of what they want, each on its stream:\n"
              "     auto block = co_await pool.acquire(stream, bytes); // no thread blocks\n"
              "   %zu began at once, %llu waited in line, %zu ended; at most %zu MiB were reserved.\n\n",
              batches, batch_bytes >> 20, limit >> 20, batches - waited, static_cast<unsigned long long>(waited),
              done.load(), seen.peak_reserved >> 20);
  return done == batches && seen.peak_reserved <= limit;
}

// `upload` writes a block and `compute` reads it: without an event between them if `ordered` is false.
std::vector<simulator::finding> findings_of(gpumem::device device, bool ordered) {
  constexpr std::size_t bytes = 1 << 20;
  simulator::checked pool{gpumem::pool_resource{device}};
  gpumem::stream upload{device}, compute{device};
  void* const block = pool.allocate(upload, bytes);
  simulator::work(upload, {simulator::write(block, bytes)});
  if (ordered) {
    gpumem::event written{device};
    written.record(upload);
    written.make_wait(compute);
  }
  simulator::work(compute, {simulator::read(block, bytes)});
  compute.synchronize();
  upload.synchronize();
  pool.deallocate(upload, block, bytes);
  return simulator::take_findings();
}

// Leaves the address out, which differs from run to run.
std::string in_two_lines(std::string text) {
  auto const address = text.find(" at 0x");
  if (address != std::string::npos) text.erase(address, text.find(')', address) - address);
  auto const order = text.find(": ");
  return order == std::string::npos ? text : text.replace(order, 2, ":\n     ");
}

struct orders {
  std::vector<simulator::finding> with_event, without;
};

// Called before anything else, so that the finding has small numbers.
orders find_orders(replay::chosen_device const& where) {
  if (!where.simulated) return {};
  auto without = findings_of(where.device, false);
  return {.with_event = findings_of(where.device, true), .without = std::move(without)};
}

bool show_orders(orders const& found, bool simulated) {
  std::puts("3. One stream writes a block of 1 MiB, another reads it, and no event orders them. Found:");
  if (!simulated) {
    std::puts("     nothing, since this device is real; the option --simulated uses the simulated one\n");
    return true;
  }
  for (auto const& each : found.without) std::printf("     %s\n", in_two_lines(each.text).c_str());
  std::printf("   With an event between the two: %zu findings. Tests fail on a finding: modules/guide/testing.md.\n\n",
              found.with_event.size());
  return found.with_event.empty() && found.without.size() == 1;
}

void print_next() {
  std::puts("Next, each by `bash cmake/run.sh …`:\n"
            "  demo -v          more figures of these traces, over seven resources\n"
            "  install PREFIX   the library for programs of your own; modules/guide/README.md begins with one\n"
            "  test             all tests, on the simulated device");
}

int run(std::vector<std::string> const& files, replay::device_choice choice) {
  auto const where = replay::choose_device(choice);
  gpumem::device_guard const here{where.device};
  std::printf("gpumem on %s%s\n\n", where.name.c_str(),
              where.simulated ? ", where no kernel runs and time means nothing: no times are shown" : "");
  auto const found = find_orders(where);
  show_traces(files, where);
  bool const waited = show_waiting(where), ordered = show_orders(found, where.simulated);
  print_next();
  return waited && ordered ? 0 : status_failed;
}

} // namespace

int main(int count, char** arguments) {
  std::vector<std::string> files{arguments + 1, arguments + count};
  if (std::ranges::find(files, "--help") != files.end()) {
    std::fputs(usage.data(), stdout);
    return 0;
  }
  auto const choice =
      std::erase(files, "--simulated") ? replay::device_choice::simulated : replay::device_choice::automatic;
  auto const unknown = std::ranges::find_if(files, [](auto const& word) { return word.starts_with('-'); });
  if (files.empty() || unknown != files.end()) {
    std::fprintf(stderr, "gpumem_demo: %s\n%s",
                 files.empty() ? "no TRACE was given" : ("unknown option " + *unknown).c_str(), usage.data());
    return status_usage;
  }
  try {
    return run(files, choice);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem_demo: %s\n", error.what());
    return status_failed;
  }
}
