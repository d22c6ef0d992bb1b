// Converts the options of a pool to the text that the C library takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

namespace gpumem {
namespace detail {

/// Writes the options that differ from their defaults.
class option_text {
public:
  explicit option_text(pool_options const& o) : out_{} {
    pool_options const usual;
    out_.imbue(std::locale::classic()); // numbers have a decimal point in all locales
    out_.precision(17);
    add("initial_size", o.initial_size, usual.initial_size);
    add("limit", o.limit, usual.limit);
    add("chunk_size", o.chunk_size, usual.chunk_size);
    add("smallest_block", o.smallest_block, usual.smallest_block);
    add("largest_block", o.largest_block, usual.largest_block);
    add("shard_per_thread", o.shard_per_thread, usual.shard_per_thread);
    add("failure_report", o.failure_report, usual.failure_report);
    add("release_threshold", o.release_threshold, usual.release_threshold);
    add("effort", o.effort, usual.effort);
    add("pages", o.pages, usual.pages);
    add("cross_stream", o.cross_stream, usual.cross_stream);
    add("max_overtakes", o.max_overtakes, usual.max_overtakes);
    add("stall_timeout", o.stall_timeout, usual.stall_timeout);
    add("name", o.name, usual.name);
    add("pass_through", o.pass_through, usual.pass_through);
    add("hardened", o.hardened.enabled, usual.hardened.enabled);
    add("guard", o.hardened.guard, usual.hardened.guard);
    add("quarantine", o.hardened.quarantine, usual.hardened.quarantine);
    add("poison", o.hardened.poison, usual.hardened.poison);
    add("history", o.hardened.history, usual.hardened.history);
  }

  option_text(option_text const&) = delete;
  option_text& operator=(option_text const&) = delete;
  ~option_text() = default;

  std::string text() const { return out_.str(); }

private:
  template <class T> void add(char const* name, T const& value, T const& usual) {
    if (value == usual) return;
    out_ << separator_ << name << '=';
    separator_ = ",";
    write(value);
  }
  template <class T> void write(T const& value) { out_ << value; }
  void write(bool value) { out_ << (value ? "on" : "off"); }
  void write(std::chrono::nanoseconds value) { out_ << std::chrono::duration<double>{value}.count() << 's'; }
  void write(reuse_policy value) {
    out_ << (value == reuse_policy::ordered ? "ordered" : value == reuse_policy::completed ? "completed" : "wait");
  }
  void write(std::string const& value) {
    bool const blank = !value.empty() && (value.front() == ' ' || value.back() == ' ');
    if (blank || value.find(',') != std::string::npos) {
      throw std::invalid_argument{"gpumem: a name or a file with a comma or an outer blank cannot be passed: '" +
                                  value + "'"};
    }
    out_ << value;
  }

  std::ostringstream out_;
  char const* separator_ = "";
};

} // namespace detail
} // namespace gpumem
