// Formats the figures of a report.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>
module report:text.impl;
import :summary;
import :text;

namespace report {

namespace detail {

template <class... Values> std::string printed(char const* format, Values... values) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string percent(double share) { return printed("%.1f %%", 100 * share); }

double quotient(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string bytes_at(std::uint64_t bytes, moment const& when) {
  return format_bytes(bytes) + " at " + format_time(when.microseconds);
}

std::string shown_holder(std::vector<holder> const& all, std::uint64_t live) {
  if (all.empty()) return "–";
  return all.front().name + ", " + percent(quotient(all.front().bytes, live));
}

std::string shown_waits(figures const& all) {
  if (all.waits == 0) return "none";
  return format_count(all.waits) + " requests, " + format_time(all.waited) + " in all, " + format_count(all.refusals) +
         " refused";
}

std::string pad(std::string text, std::size_t width) {
  std::size_t shown = 0;
  for (char const c : text) shown += (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  return text.append(width > shown ? width - shown : 0, ' ');
}

std::string shown_holders(char const* title, std::vector<holder> const& all, std::uint64_t live) {
  constexpr std::size_t most = 5;
  std::string text;
  for (holder const& each : std::span{all}.first(std::min(most, all.size()))) {
    text += "  " + pad(text.empty() ? title : "", 12) + pad(each.name, 22) + pad(format_bytes(each.bytes), 12) +
            pad(percent(quotient(each.bytes, live)), 9) + format_count(each.blocks) +
            (each.blocks == 1 ? " block\n" : " blocks\n");
  }
  if (all.size() > most) text += "  " + pad("", 12) + "and " + format_count(all.size() - most) + " more\n";
  return text;
}

std::string shown_fit(moment const& worst) {
  if (worst.free == 0) return "nothing was free";
  return format_bytes(worst.largest_free) + " of " + format_bytes(worst.free) + " free";
}

nlohmann::ordered_json json_of(moment const& when) {
  return {{"row", when.row},
          {"microseconds", when.microseconds},
          {"live_bytes", when.live},
          {"blocks", when.blocks},
          {"reserved_bytes", when.reserved},
          {"free_bytes", when.free},
          {"largest_free_bytes", when.largest_free},
          {"fragmentation", when.fragmentation()}};
}

nlohmann::ordered_json json_of(std::vector<holder> const& all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (holder const& each : all) list.push_back({{"name", each.name}, {"bytes", each.bytes}, {"blocks", each.blocks}});
  return list;
}

nlohmann::ordered_json json_of(summary const& of) {
  constexpr std::array<char const*, 3> sources{"none", "log", "replay"};
  figures const& all = of.main;
  nlohmann::ordered_json made{{"name", of.name},
                              {"file", of.file},
                              {"memory", sources[static_cast<std::size_t>(of.memory)]},
                              {"rows", all.rows},
                              {"microseconds", all.microseconds},
                              {"allocations", all.allocations},
                              {"frees", all.frees},
                              {"unknown_frees", all.unknown_frees},
                              {"failures", all.failures},
                              {"waits", all.waits},
                              {"waited_microseconds", all.waited},
                              {"refusals", all.refusals},
                              {"maps", all.maps},
                              {"unmaps", all.unmaps},
                              {"moves", all.moves},
                              {"moved_bytes", all.moved_bytes},
                              {"peak_live", json_of(all.peak_live)},
                              {"peak_reserved", json_of(all.peak_reserved)},
                              {"worst_fragmentation", json_of(all.worst)},
                              {"end", json_of(all.last)}};
  for (std::size_t i = 0; i < reasons; ++i) made["served_by"][std::string{reason_names[i]}] = all.served[i];
  made["holders_at_peak"] = {
      {"streams", json_of(of.streams)}, {"threads", json_of(of.threads)}, {"labels", json_of(of.labels)}};
  made["sizes"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < of.sizes.size(); ++i) {
    size_bin const& bin = of.sizes[i];
    if (bin.blocks == 0 && bin.blocks_at_peak == 0) continue;
    made["sizes"].push_back({{"from_bytes", i == 0 ? 0 : std::uint64_t{1} << i},
                             {"allocations", bin.blocks},
                             {"allocated_bytes", bin.bytes},
                             {"blocks_at_peak", bin.blocks_at_peak},
                             {"bytes_at_peak", bin.bytes_at_peak}});
  }
  return made;
}

} // namespace detail

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<char const*, 5> units{"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  return detail::printed(value < 10 ? "%.2f %s" : value < 100 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

std::string format_time(std::uint64_t microseconds) {
  auto const value = static_cast<double>(microseconds);
  if (microseconds < 1000) return std::to_string(microseconds) + " µs";
  if (microseconds < 1'000'000) return detail::printed("%.1f ms", value / 1e3);
  return detail::printed("%.3f s", value / 1e6);
}

std::string format_count(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string describe_source(summary const& of) {
  switch (of.memory) {
  case memory_source::log: return "The log has the rows of the pool's memory.";
  case memory_source::replay:
    return "The log has no rows of memory. Reserved bytes, addresses and reasons for reuse are those of a replay over "
           "a gpumem pool.";
  case memory_source::none: break;
  }
  return "The log has no rows of memory and begins with live blocks, so it cannot be replayed. Live bytes count the "
         "blocks that it shows.";
}

std::vector<figure_row> main_figures(std::span<summary const> all) {
  std::vector<figure_row> rows;
  auto const add = [&](std::string name, auto const& value) {
    figure_row row{std::move(name), {}};
    for (summary const& each : all) row.values.push_back(value(each, each.main));
    rows.push_back(std::move(row));
  };
  auto const with_memory = [](auto const& value) {
    return [value](summary const& of, figures const& main) {
      return of.memory == memory_source::none ? std::string{"–"} : value(main);
    };
  };
  add("calls", [](summary const&, figures const& main) { return format_count(main.allocations + main.frees); });
  add("time", [](summary const&, figures const& main) { return format_time(main.microseconds); });
  add("peak live",
      [](summary const&, figures const& main) { return detail::bytes_at(main.peak_live.live, main.peak_live); });
  add("peak reserved", with_memory([](figures const& main) {
        return detail::bytes_at(main.peak_reserved.reserved, main.peak_reserved);
      }));
  add("live / reserved, peaks", with_memory([](figures const& main) {
        return detail::percent(detail::quotient(main.peak_live.live, main.peak_reserved.reserved));
      }));
  add("most of the peak",
      [](summary const& of, figures const& main) { return detail::shown_holder(of.streams, main.peak_live.live); });
  add("worst fragmentation", with_memory([](figures const& main) {
        return detail::percent(main.worst.fragmentation()) + " at " + format_time(main.worst.microseconds);
      }));
  add("largest fit then", with_memory([](figures const& main) { return detail::shown_fit(main.worst); }));
  for (std::size_t how = 0; how < reasons; ++how) {
    auto const count = [how](summary const& of) { return of.main.served[how]; };
    if (std::ranges::none_of(all, [&](summary const& of) { return count(of) > 0; })) continue;
    add("served by " + std::string{reason_names[how]}, [&](summary const& of, figures const& main) {
      return detail::percent(detail::quotient(count(of), main.allocations));
    });
  }
  add("pages moved", with_memory([](figures const& main) {
        return main.moves == 0 ? "none" : format_count(main.moves) + " times, " + format_bytes(main.moved_bytes);
      }));
  add("waits", [](summary const&, figures const& main) { return detail::shown_waits(main); });
  add("failed attempts", [](summary const&, figures const& main) { return format_count(main.failures); });
  add("live at the end", [](summary const&, figures const& main) {
    return format_bytes(main.last.live) + " in " + format_count(main.last.blocks) + " blocks";
  });
  return rows;
}

namespace detail {
std::string shown_table(std::span<summary const> all, std::size_t first_width) {
  std::vector<figure_row> rows = main_figures(all);
  if (all.size() > 1) {
    figure_row names{"", {}};
    for (summary const& each : all) names.values.push_back(each.name);
    rows.insert(rows.begin(), std::move(names));
  }
  std::string text;
  for (figure_row const& row : rows) {
    std::string line = "  " + pad(row.name, first_width);
    for (std::string const& value : row.values) line += pad(value, all.size() > 1 ? 30 : 0);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}
} // namespace detail

std::string format_text(std::span<summary const> all) {
  std::string text;
  if (all.size() > 1) text = detail::shown_table(all, 30);
  for (summary const& each : all) {
    if (!text.empty()) text += '\n';
    text += each.file + "\n";
    if (all.size() == 1) text += detail::shown_table(all, 30);
    if (each.main.unknown_frees > 0)
      text += "  " + detail::pad("frees of unknown blocks", 30) + format_count(each.main.unknown_frees) + "\n";
    text += "  holders at peak live:\n";
    text += detail::shown_holders("by stream", each.streams, each.main.peak_live.live);
    text += detail::shown_holders("by thread", each.threads, each.main.peak_live.live);
    text += "  " + describe_source(each) + "\n";
  }
  return text;
}

std::string format_json(std::span<summary const> all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (summary const& each : all) list.push_back(detail::json_of(each));
  return list.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

} // namespace report
