// logging_adaptor: formats rows, buffers them and writes them to the sinks.
// SPDX-License-Identifier: Apache-2.0
module;
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>
module gpumem:logging_adaptor.impl;
import :logging_adaptor;
import :driver;
import :fork;
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

allocation_log::allocation_log(std::vector<log_sink> sinks, bool auto_flush)
    : sinks_{std::move(sinks)}, auto_flush_{auto_flush}, began_{microseconds_since_midnight()}, began_at_{sync::now()} {
  throw_if_child();
  if (sinks_.empty()) throw std::invalid_argument{"gpumem: a logging_adaptor needs at least one sink"};
  gathered_.reserve(log_buffer + max_row);
  gathered_.append(trace_header).append("\n");
  if (!flush()) throw std::runtime_error{"gpumem: cannot write to the log"};
}

allocation_log::~allocation_log() { flush(); }

void allocation_log::write(trace_action action, stream_key const& key, void const* pointer,
                           std::size_t bytes) noexcept {
  auto const thread = system_thread();
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  auto const stream = reinterpret_cast<std::uintptr_t>(key.handle());
  sync::lock const held{mutex_};
  auto const passed = std::chrono::duration_cast<std::chrono::microseconds>(sync::now() - began_at_).count();
  auto const time = began_ + static_cast<std::uint64_t>(passed);
  gathered_.append(format_row({thread, time, action, address, bytes, stream}).text()); // the capacity is reserved
  if (auto_flush_) {
    drain();
    flush_sinks();
  } else if (gathered_.size() >= log_buffer) {
    drain();
  }
}

bool allocation_log::flush() noexcept {
  if (forked()) return false;
  sync::lock const held{mutex_};
  drain();
  return flush_sinks();
}

void allocation_log::drain() noexcept {
  for (auto const& sink : sinks_) {
    try {
      sink.output().write(gathered_.data(), static_cast<std::streamsize>(gathered_.size()));
      failed_ = failed_ || !sink.output();
    } catch (...) { // only the log has failed, not the allocation or free
      failed_ = true;
    }
  }
  gathered_.clear();
}

bool allocation_log::flush_sinks() noexcept {
  for (auto const& sink : sinks_) {
    try {
      failed_ = failed_ || !sink.output().flush();
    } catch (...) { failed_ = true; }
  }
  return !failed_;
}

} // namespace detail
} // namespace gpumem
