// logging_adaptor: writes traces as text or binary.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <base/cycle_counter.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <new>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unistd.h>
#include <unordered_map>
#include <utility>
#include <vector>
module gpumem:logging_adaptor.impl;
import :logging_adaptor;
import :driver;
import :holder;
import :labels;
import :memory_watcher;
import :misuse;
import :process;
import :stream;
import :sync;
import :trace;

namespace gpumem {

log_sink::log_sink(std::string const& path) {
  if (path.empty()) throw std::invalid_argument{"gpumem: the path of a log is empty"};
  output_ = std::make_shared<std::ofstream>(path, std::ios::trunc | std::ios::binary);
  if (!*output_) throw std::runtime_error{"gpumem: cannot open the log file for writing: " + path};
}

log_sink::log_sink(std::ostream& output) noexcept : output_{std::shared_ptr<std::ostream>{}, &output} {}

log_sink log_sink::from_environment() {
  auto const* const path = std::getenv("GPUMEM_LOG_FILE");
  if (!path || !*path) { throw std::invalid_argument{"gpumem: no log file: pass a path or set GPUMEM_LOG_FILE"}; }
  return {path};
}

namespace detail {
namespace {

inline constexpr std::size_t log_buffer = std::size_t{64} * 1024;
inline constexpr std::size_t max_row = 128;

std::uint64_t microseconds_since_midnight() {
  using namespace std::chrono;
  auto const now = system_clock::now();
  auto const seconds = system_clock::to_time_t(now);
  std::tm local{};
  localtime_r(&seconds, &local);
  auto const whole = (local.tm_hour * 60 + local.tm_min) * 60 + local.tm_sec;
  auto const fraction = duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
  return static_cast<std::uint64_t>(whole) * 1'000'000 + static_cast<std::uint64_t>(fraction);
}

std::uint64_t system_thread() noexcept {
  thread_local auto const mine = static_cast<std::uint64_t>(::gettid());
  return mine;
}

} // namespace

std::uint16_t log_labels::find_or_add(std::uint32_t label) noexcept try {
  constexpr std::size_t max_labels = UINT16_MAX;
  auto text = label_text(label);
  sync::lock const lock{mutex_};
  if (numbers_.size() + 1 >= max_labels && !numbers_.contains(text)) text = "(other labels)";
  auto const next = static_cast<std::uint16_t>(numbers_.size() + 1);
  auto const [place, added] = numbers_.try_emplace(text, next);
  if (added) {
    try {
      binary_trace_row const row{.ticks = 0,
                                 .pointer = 0,
                                 .bytes = text.size(),
                                 .stream = 0,
                                 .thread = 0,
                                 .action = row.text_row,
                                 .label = next};
      auto const size = (text.size() + sizeof row - 1) / sizeof row * sizeof row;
      rows_.reserve(rows_.size() + sizeof row + size);
      rows_.append(bytes_in_trace(row)).append(text).append(size - text.size(), '\0');
    } catch (...) {
      numbers_.erase(place);
      throw;
    }
  }
  known_[label % known_.size()].store(std::uint64_t{label} << 32 | place->second, std::memory_order_release);
  return place->second;
} catch (std::bad_alloc const&) { return 0; }

std::string log_labels::take_rows() noexcept {
  sync::lock const lock{mutex_};
  return std::exchange(rows_, {});
}

allocation_log::allocation_log(std::vector<log_sink> sinks, logging_options options)
    : sinks_{std::move(sinks)}, options_{options}, began_{microseconds_since_midnight()}, began_at_{sync::now()},
      counts_cycles_{sync::real_time && has_cycle_counter()} {
  throw_if_child();
  if (sinks_.empty()) throw std::invalid_argument{"gpumem: a logging_adaptor needs at least one sink"};
  if (options_.keep_last > 0 && !binary())
    throw std::invalid_argument{"gpumem: only a binary log keeps its last rows in memory"};
  if (options_.keep_last > kept_.max_size() / 3)
    throw std::invalid_argument{"gpumem: a log cannot keep " + std::to_string(options_.keep_last) + " rows in memory"};
  gathered_.reserve(log_buffer + max_row);
  if (keeps()) kept_.reserve(2 * options_.keep_last + log_buffer / sizeof(binary_trace_row));
  binary_trace_header const header{.microseconds = began_, .ticks = ticks()};
  sync::lock const lock{mutex_};
  binary() ? write_to_sinks(bytes_in_trace(header)) : write_to_sinks(std::string{trace_header} + "\n");
  if (!flush_sinks()) throw std::runtime_error{"gpumem: cannot write to the log"};
}

allocation_log::~allocation_log() {
  if (!keeps()) flush();
  for (auto const& ring : rings_) delete ring.load(std::memory_order_relaxed);
}

sync::duration allocation_log::passed() const noexcept { return sync::now() - began_at_; }

std::uint64_t allocation_log::ticks() const noexcept {
  return counts_cycles_ ? read_cycle_counter() : static_cast<std::uint64_t>(passed().count());
}

// Returns the time of a row for which only the thread's own rows need come before, as last().
std::uint64_t allocation_log::ticks_after(log_ring const& ring) const noexcept {
  auto const* const last = ring.last();
  return last && counts_cycles_ ? std::max(last->ticks, read_cycle_counter_early()) : ticks();
}

void allocation_log::write(trace_action action, stream_key const& key, void const* pointer, std::size_t bytes,
                           served_by served) noexcept {
  if (writes_here()) [[unlikely]]
    return;
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  auto const stream = reinterpret_cast<std::uintptr_t>(key.identity().handle());
  if (binary()) {
    auto* const ring = ring_of_thread();
    // The block was freed by this thread, since it was in the thread's cache.
    bool const hit = ring && served == served_by::thread_cache;
    auto const* const unit = action == trace_action::allocate ? key.context().unit() : nullptr;
    return write_binary(ring, {.ticks = hit ? ticks_after(*ring) : ticks(),
                               .pointer = address,
                               .bytes = bytes,
                               .stream = stream,
                               .thread = static_cast<std::uint32_t>(system_thread()),
                               .action = static_cast<std::uint8_t>(action),
                               .served = static_cast<std::uint8_t>(served),
                               .label = unit ? labels_.number_of(unit->label()) : std::uint16_t{0}});
  }
  trace_record record{
      .thread = system_thread(), .action = action, .pointer = address, .bytes = bytes, .stream = stream};
  sync::lock const lock{mutex_};
  auto const time = std::chrono::duration_cast<std::chrono::microseconds>(passed());
  record.microseconds = began_ + static_cast<std::uint64_t>(time.count());
  append(format_row(record).text());
}

void allocation_log::write_label(void const* pointer, std::uint32_t label) noexcept {
  if (!binary() || writes_here()) return;
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  auto const number = labels_.number_of(label);
  auto* const ring = ring_of_thread();
  if (auto const* const last = ring ? ring->last() : nullptr;
      last && last->pointer == address && last->label == number &&
      last->action == static_cast<std::uint8_t>(trace_action::allocate))
    return;
  write_binary(ring, {.ticks = ticks(),
                      .pointer = address,
                      .bytes = 0,
                      .stream = 0,
                      .thread = static_cast<std::uint32_t>(system_thread()),
                      .action = static_cast<std::uint8_t>(trace_action::label),
                      .label = number});
}

inline void allocation_log::write_binary(log_ring* ring, binary_trace_row const& row) noexcept {
  if (ring && ring->push(row)) return;
  sync::lock const lock{mutex_};
  if (!ring) return append(bytes_in_trace(row));
  take_rows(*ring);
  ring->push(row);
}

void allocation_log::on_mapped(void const* base, std::size_t bytes) noexcept {
  write_memory(trace_action::map, base, bytes, nullptr);
}

void allocation_log::on_unmapping(void const* base, std::size_t bytes) noexcept {
  write_memory(trace_action::unmap, base, bytes, nullptr);
}

void allocation_log::on_moved(void const* source, void const* target, std::size_t bytes) noexcept {
  write_memory(trace_action::move, target, bytes, source);
}

void allocation_log::write_memory(trace_action action, void const* pointer, std::size_t bytes,
                                  void const* source) noexcept {
  sync::lock const lock{memory_mutex_};
  try {
    memory_rows_.push_back({.ticks = ticks(),
                            .pointer = reinterpret_cast<std::uintptr_t>(pointer),
                            .bytes = bytes,
                            .stream = reinterpret_cast<std::uintptr_t>(source),
                            .thread = static_cast<std::uint32_t>(system_thread()),
                            .action = static_cast<std::uint8_t>(action)});
  } catch (std::bad_alloc const&) { lost_memory_row_ = true; }
}

// Returns the ring (a buffer of rows) of the calling thread, which is made at the first call. Returns null if too many
// threads run, if the host has no memory, or if each row is written at once.
inline log_ring* allocation_log::ring_of_thread() noexcept {
  auto const index = sync::thread_index();
  if (index >= max_rings || options_.auto_flush) return nullptr;
  auto* ring = rings_[index].load(std::memory_order_relaxed);
  if (!ring) [[unlikely]] {
    ring = new (std::nothrow) log_ring;
    rings_[index].store(ring, std::memory_order_release);
  }
  return ring;
}

// Appends the row to the buffer. That allocates nothing, since the constructor reserved the capacity of the buffer.
void allocation_log::append(std::string_view row) noexcept {
  gathered_.append(row);
  if (options_.auto_flush) {
    drain();
    flush_sinks();
  } else if (gathered_.size() >= log_buffer) {
    drain();
  }
}

void allocation_log::take_rows(log_ring& ring) noexcept {
  static_assert(log_ring::bytes <= log_buffer);
  if (keeps() || gathered_.size() + log_ring::bytes > log_buffer) drain();
  ring.take(gathered_);
}

bool allocation_log::flush() noexcept {
  if (forked() || writes_here()) return false;
  sync::lock const lock{mutex_};
  for (auto const& each : rings_) {
    if (auto* const ring = each.load(std::memory_order_acquire)) take_rows(*ring);
  }
  drain();
  if (keeps()) write_kept();
  return flush_sinks();
}

bool allocation_log::writes_here() const noexcept { return writer_.load(std::memory_order_relaxed) == &refused_calls; }

void allocation_log::drain() noexcept {
  std::vector<binary_trace_row> memory;
  {
    sync::lock const lock{memory_mutex_};
    memory.swap(memory_rows_);
    failed_ = failed_ || lost_memory_row_;
  }
  bool const any = !(memory.empty() && gathered_.empty());
  if (counts_cycles_ && binary() && !keeps() && any) add_clock_row();
  if (!keeps()) write_to_sinks(labels_.take_rows());
  std::string_view const memory_text{reinterpret_cast<char const*>(memory.data()),
                                     memory.size() * sizeof(binary_trace_row)};
  for (std::string_view const text : {memory_text, std::string_view{gathered_}}) {
    keeps() ? keep(text) : write_to_sinks(text);
  }
  gathered_.clear();
}

// Adds the time of the clock to the rows, once in a millisecond at most.
void allocation_log::add_clock_row() noexcept {
  auto const row = clock_row();
  if (last_clock_ != 0 && row.pointer < last_clock_ + 1'000'000) return;
  last_clock_ = row.pointer;
  gathered_.append(bytes_in_trace(row));
}

binary_trace_row allocation_log::clock_row() const noexcept {
  auto const time = static_cast<std::uint64_t>(passed().count());
  return {
      .ticks = ticks(), .pointer = time, .bytes = 0, .stream = 0, .thread = 0, .action = binary_trace_row::clock_row};
}

// Adds rows in the order of their times: those of a thread can come long after newer rows of another. Each run of rows
// that is in order is merged from its end.
void allocation_log::keep(std::string_view rows) noexcept {
  constexpr auto most = log_buffer / sizeof(binary_trace_row);
  auto const row_at = [&rows](std::size_t i) {
    binary_trace_row row;
    std::memcpy(&row, rows.data() + i * sizeof row, sizeof row);
    return row;
  };
  while (!rows.empty()) {
    auto const all = std::min(rows.size() / sizeof(binary_trace_row), most);
    std::size_t run = 1;
    while (run < all && row_at(run - 1).ticks <= row_at(run).ticks) ++run;
    auto old = kept_.size();
    kept_.resize(old + run);
    for (auto left = run; left > 0; --left) {
      auto const row = row_at(left - 1);
      for (; old > 0 && kept_[old - 1].ticks > row.ticks; --old) kept_[old - 1 + left] = kept_[old - 1];
      kept_[old - 1 + left] = row;
    }
    rows.remove_prefix(run * sizeof(binary_trace_row));
    if (kept_.size() >= 2 * options_.keep_last) drop_old_rows();
  }
}

void allocation_log::drop_old_rows() noexcept {
  auto const last = static_cast<std::ptrdiff_t>(std::min(kept_.size(), options_.keep_last));
  kept_.erase(kept_.begin(), kept_.end() - last);
}

void allocation_log::write_kept() noexcept {
  drop_old_rows();
  write_to_sinks(labels_.take_rows());
  write_to_sinks({reinterpret_cast<char const*>(kept_.data()), kept_.size() * sizeof(binary_trace_row)});
  if (counts_cycles_) write_to_sinks(bytes_in_trace(clock_row()));
  kept_.clear();
}

void allocation_log::write_to_sinks(std::string_view text) noexcept {
  if (text.empty()) return;
  writer_.store(&refused_calls, std::memory_order_relaxed);
  for (auto const& sink : sinks_) {
    try {
      sink.output().write(text.data(), static_cast<std::streamsize>(text.size()));
      failed_ = failed_ || !sink.output();
    } catch (...) { // an error of the log must not fail the allocation or free
      failed_ = true;
    }
  }
  writer_.store(nullptr, std::memory_order_relaxed);
}

bool allocation_log::flush_sinks() noexcept {
  writer_.store(&refused_calls, std::memory_order_relaxed);
  for (auto const& sink : sinks_) {
    try {
      failed_ = failed_ || !sink.output().flush();
    } catch (...) { failed_ = true; }
  }
  writer_.store(nullptr, std::memory_order_relaxed);
  return !failed_;
}

} // namespace detail
} // namespace gpumem
