// Writes the results as JSON, and writes a file atomically.
// SPDX-License-Identifier: Apache-2.0
module;

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>

module replay:json.impl;

import :json;
import :result;

namespace replay {

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
