// Formats the pools of all processes.
// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include "../table.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import gpumem;

namespace top {

namespace {

constexpr std::size_t text_columns = 3; // the others are numbers

std::string bytes(std::uint64_t value) { return value == 0 ? "-" : gpumem::format_bytes(value); }

// Quotes a label's value. Names of pools and programs have printable characters only.
std::string quoted(std::string_view value) {
  std::string text = "\"";
  for (char const each : value) {
    if (each == '"' || each == '\\') text += '\\';
    text += each;
  }
  return text + "\"";
}

struct metric {
  std::string_view name;
  std::string_view kind;
  std::string_view help;
  std::uint64_t row::* value;
};

constexpr std::array<metric, 12> metrics{{
    {"live_bytes", "gauge", "Requested bytes of blocks that are not freed yet.", &row::live},
    {"reserved_bytes", "gauge", "Bytes that the pool has from the device.", &row::reserved},
    {"limit_bytes", "gauge", "Most bytes that may be reserved; 0: no limit.", &row::limit},
    {"cached_bytes", "gauge", "Freed bytes in the caches of threads.", &row::cached},
    {"peak_live_bytes", "gauge", "Highest live bytes.", &row::peak_live},
    {"peak_reserved_bytes", "gauge", "Highest reserved bytes.", &row::peak_reserved},
    {"waiting_requests", "gauge", "Requests that wait for memory.", &row::waiting},
    {"waiting_bytes", "gauge", "Bytes for which these requests ask.", &row::waiting_bytes},
    {"allocations_total", "counter", "Granted requests.", &row::allocations},
    {"misses_total", "counter", "Granted requests that no thread cache served.", &row::misses},
    {"failures_total", "counter", "Requests that ended without memory.", &row::failures},
    {"moves_total", "counter", "Times that free pages moved to where memory was missing.", &row::moves},
}};

} // namespace

std::string format_table(std::span<process const> all) {
  std::vector<bench::line> lines{
      {"process", "program", "pool", "device", "live", "reserved", "limit", "waiting", "moves", "misses"}};
  std::uint64_t left_out = 0;
  for (process const& one : all) {
    for (row const& pool : one.rows) {
      lines.push_back({one.id, one.program, pool.name, pool.device < 0 ? "-" : std::to_string(pool.device),
                       bytes(pool.live), bytes(pool.reserved), bytes(pool.limit), std::to_string(pool.waiting),
                       std::to_string(pool.moves), std::to_string(pool.misses)});
    }
    left_out += one.pools - one.rows.size();
  }
  if (lines.size() == 1) return "No process publishes pools: it needs GPUMEM_MONITOR=1.\n";
  std::string const more = left_out == 0 ? "" : std::to_string(left_out) + " more pools have no rows.\n";
  return bench::aligned(lines, text_columns) + more;
}

std::string format_prometheus(std::span<process const> all) {
  std::string text;
  for (metric const& each : metrics) {
    std::string const name = "gpumem_pool_" + std::string{each.name};
    text += "# HELP " + name + " " + std::string{each.help} + "\n# TYPE " + name + " " + std::string{each.kind} + "\n";
    for (process const& one : all) {
      for (std::size_t i = 0; i < one.rows.size(); ++i) {
        row const& pool = one.rows[i];
        text += name + "{process=\"" + one.id + "\",program=" + quoted(one.program) + ",pool=" + quoted(pool.name) +
                ",number=\"" + std::to_string(i) + "\",device=\"" + std::to_string(pool.device) + "\"} " +
                std::to_string(pool.*each.value) + "\n";
      }
    }
  }
  return text;
}

} // namespace top
