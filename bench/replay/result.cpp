// Formats results as tables and as JSON.
// SPDX-License-Identifier: Apache-2.0
module;
#include "../table.hpp"
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
module replay:result.impl;
import gpumem;
import :result;

namespace replay {

namespace detail {

std::string decimals(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

// 12345678 becomes 12,345,678.
std::string grouped(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), ",");
  }
  return text;
}

std::string nanoseconds(double value) {
  return value < 99.95 ? decimals(value, 1) : grouped(static_cast<std::uint64_t>(std::llround(value)));
}

std::string name_of(result const& row) {
  return row.trace + (row.threads > 1 ? " x " + std::to_string(row.threads) : "");
}

struct column {
  std::string_view name;
  bool (*present)(result const&);
  std::string (*cell)(result const&);
};

bool always(result const&) { return true; }
bool timed(result const& row) { return row.times.has_value(); }
bool with_timeline(result const& row) { return row.times && row.times->device_time; }
bool with_fragmentation(result const& row) { return row.fragmentation.has_value(); }
bool with_pace(result const& row) { return row.times && row.times->pace; }

std::span<column const> columns() {
  static constexpr std::array<column, 17> all{{
      {"trace", always, [](result const& row) { return name_of(row); }},
      {"operations", always, [](result const& row) { return grouped(row.operations); }},
      {"cold ns/op", timed, [](result const& row) { return nanoseconds(row.times->cold); }},
      {"warm ns/op", timed, [](result const& row) { return nanoseconds(row.times->warm); }},
      {"p50 ns", timed, [](result const& row) { return nanoseconds(row.times->call.p50); }},
      {"p99 ns", timed, [](result const& row) { return nanoseconds(row.times->call.p99); }},
      {"max ns", timed, [](result const& row) { return nanoseconds(row.times->call.max); }},
      {"driver calls/1000", always, [](result const& row) { return decimals(row.driver_calls_warm, 1); }},
      {"peak live", always, [](result const& row) { return gpumem::format_bytes(row.peak_live_bytes); }},
      {"peak reserved", always, [](result const& row) { return gpumem::format_bytes(row.peak_reserved_bytes); }},
      {"utilization", always, [](result const& row) { return decimals(row.utilization(), 3); }},
      {"fragmentation", with_fragmentation, [](result const& row) { return decimals(*row.fragmentation, 3); }},
      {"initial size", always, [](result const& row) { return gpumem::format_bytes(row.suggested_initial_bytes); }},
      {"timeline ratio", with_timeline, [](result const& row) { return decimals(row.times->device_time->warm, 3); }},
      {"share of time", with_pace, [](result const& row) { return decimals(row.times->pace->share_warm, 4); }},
      {"failures", always, [](result const& row) { return grouped(row.failures); }},
      {"left live", always, [](result const& row) { return grouped(row.blocks_live_at_end); }},
  }};
  return all;
}

std::string title(result const& row) {
  std::string text = row.resource + " on " + row.device;
  if (row.foreign_streams) text += ", foreign streams";
  if (row.work_every != 0) {
    text += ", a kernel of " + decimals(row.work_microseconds, row.work_microseconds < 10 ? 1 : 0) +
            " us after every " + (row.work_every == 1 ? "" : std::to_string(row.work_every) + ". ") + "allocation";
  }
  if (row.recorded_seconds != 0) text += ", at the recorded pace";
  if (row.times) { text += "; one call includes " + nanoseconds(row.times->call.clock) + " ns of clock"; }
  return text;
}

std::string one_table(std::vector<result const*> const& rows) {
  std::vector<bench::line> lines(rows.size() + 1);
  for (column const& each : columns()) {
    if (std::none_of(rows.begin(), rows.end(), [&](result const* row) { return each.present(*row); })) continue;
    lines[0].emplace_back(each.name);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      lines[i + 1].push_back(each.present(*rows[i]) ? each.cell(*rows[i]) : "-");
    }
  }
  return title(*rows.front()) + "\n" + bench::aligned(lines, 1);
}

} // namespace detail

std::string format_tables(std::span<result const> results) {
  std::vector<std::string_view> resources;
  for (result const& row : results) {
    if (std::find(resources.begin(), resources.end(), row.resource) == resources.end()) {
      resources.push_back(row.resource);
    }
  }
  std::string text;
  for (std::string_view const resource : resources) {
    std::vector<result const*> rows;
    for (result const& row : results) {
      if (row.resource == resource) rows.push_back(&row);
    }
    text += (text.empty() ? "" : "\n") + detail::one_table(rows);
  }
  return text;
}

namespace detail {

void add_times(nlohmann::ordered_json& object, measured_times const& times) {
  object["cold_ns_per_operation"] = times.cold;
  object["warm_ns_per_operation"] = times.warm;
  object["call_p50_ns"] = times.call.p50;
  object["call_p99_ns"] = times.call.p99;
  object["call_max_ns"] = times.call.max;
  object["clock_ns_in_each_call"] = times.call.clock;
  if (times.device_time) {
    object["device_time_ratio_cold"] = times.device_time->cold;
    object["device_time_ratio_warm"] = times.device_time->warm;
    object["timeline_preallocated_ms"] = times.device_time->preallocated_milliseconds;
  }
  if (times.pace) {
    object["share_of_time_cold"] = times.pace->share_cold;
    object["share_of_time_warm"] = times.pace->share_warm;
    object["pass_seconds_warm"] = times.pace->seconds_warm;
  }
}

nlohmann::ordered_json object_of(result const& row) {
  nlohmann::ordered_json object{{"trace", row.trace},
                                {"resource", row.resource},
                                {"utilization", row.utilization()},
                                {"failures", row.failures},
                                {"file", row.file},
                                {"device", row.device},
                                {"threads", row.threads},
                                {"warm_passes", row.warm_passes},
                                {"foreign_streams", row.foreign_streams},
                                {"operations_per_pass_and_thread", row.operations},
                                {"streams_per_thread", row.streams},
                                {"peak_live_bytes", row.peak_live_bytes},
                                {"peak_reserved_bytes", row.peak_reserved_bytes},
                                {"peak_reserved_bytes_by_pass", row.peaks_by_pass},
                                {"suggested_initial_bytes", row.suggested_initial_bytes},
                                {"driver_calls_per_1000_operations_cold", row.driver_calls_cold},
                                {"driver_calls_per_1000_operations", row.driver_calls_warm},
                                {"frees_on_other_streams", row.frees_elsewhere},
                                {"blocks_left_live_by_trace", row.blocks_live_at_end},
                                {"allocation_failures_recorded_in_trace", row.recorded_failures}};
  if (row.fragmentation) object["fragmentation"] = *row.fragmentation;
  if (row.limit_bytes != 0) object["limit_bytes"] = row.limit_bytes;
  if (row.work_every != 0) {
    object["work_microseconds"] = row.work_microseconds;
    object["work_every_allocations"] = row.work_every;
  }
  if (row.recorded_seconds != 0) object["recorded_seconds"] = row.recorded_seconds;
  if (row.times) add_times(object, *row.times);
  return object;
}

} // namespace detail

std::string format_json(std::span<result const> results) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (result const& row : results) all.push_back(detail::object_of(row));
  // `replace`: a file name need not be UTF-8
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void write_whole(std::string const& path, std::string const& text) {
  std::string const temporary = path + ".part" + std::to_string(getpid());
  auto const fail = [&](std::error_code error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw std::runtime_error(path + ": cannot be written: " + error.message());
  };
  std::FILE* const file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) fail({errno, std::generic_category()});
  bool const written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int const write_error = errno;
  if (std::fclose(file) != 0 || !written) fail({written ? errno : write_error, std::generic_category()});
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) fail(error);
}

} // namespace replay
