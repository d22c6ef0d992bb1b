// Formats the figures of a report.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module report:text.impl;
import :changes;
import :events;
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

std::string shown_holder(holder_lists const& lists, std::uint64_t live) {
  auto const& all = lists.labels.empty() ? lists.streams : lists.labels;
  if (all.empty()) return "–";
  return all.front().name + ", " + percent(quotient(all.front().bytes, live));
}

std::string shown_waits(figures const& all) {
  if (all.waits == 0) return "none";
  return format_count(all.waits) + " requests, " + format_time(all.waited) + " in all, " + format_count(all.refusals) +
         " refused";
}

std::size_t shown_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](unsigned char c) { return (c & 0xc0U) != 0x80U; })); // UTF-8
}

std::string pad(std::string text, std::size_t width) {
  std::size_t const shown = shown_width(text);
  return text.append(width > shown ? width - shown : 0, ' ');
}

std::string shown_count(std::uint64_t count, char const* unit) {
  return format_count(count) + " " + unit + (count == 1 ? "" : "s");
}

std::string shown_holders(char const* title, std::vector<holder> const& all, std::uint64_t live) {
  constexpr std::size_t most = 5;
  std::string text;
  for (holder const& each : std::span{all}.first(std::min(most, all.size()))) {
    text += "  " + pad(text.empty() ? title : "", 12) + pad(each.name + " ", 22) + pad(format_bytes(each.bytes), 12) +
            pad(percent(quotient(each.bytes, live)), 9) + shown_count(each.blocks, "block") + "\n";
  }
  if (all.size() > most) text += "  " + pad("", 12) + "and " + format_count(all.size() - most) + " more\n";
  return text;
}

std::string shown_holders(holder_lists const& all, std::uint64_t live) {
  return shown_holders("by label", all.labels, live) + shown_holders("by stream", all.streams, live) +
         shown_holders("by thread", all.threads, live);
}

// Returns "+3.00 MiB", "−3.00 MiB" or "+0 B".
std::string shown_difference(std::uint64_t before, std::uint64_t after) {
  return after >= before ? "+" + format_bytes(after - before) : "−" + format_bytes(before - after);
}

std::string shown_change(std::string const& title, change const& each) {
  std::string const blocks = format_count(each.blocks_before) + " → " + shown_count(each.blocks_after, "block");
  return "  " + pad(title, 12) + pad(each.name + " ", 24) +
         pad(shown_difference(each.bytes_before, each.bytes_after), 12) +
         pad(format_bytes(each.bytes_before) + " → " + format_bytes(each.bytes_after), 24) + blocks + "\n";
}

std::string shown_changes(char const* title, std::vector<change> const& all) {
  constexpr std::size_t most = 8;
  std::string text;
  for (change const& each : std::span{all}.first(std::min(most, all.size())))
    text += shown_change(text.empty() ? title : "", each);
  if (all.size() > most) text += "  " + pad("", 12) + "and " + format_count(all.size() - most) + " more\n";
  return text;
}

std::string shown_changes(summary const& before, summary const& after) {
  auto const of = [](summary const& each) { return each.name + (each.snapshot ? "" : " at peak live"); };
  auto const &first = compared_moment(before), &second = compared_moment(after);
  auto const changes = compare(before, after);
  std::string text = "\nChanges from " + of(before) + " to " + of(after) + "\n";
  text += shown_change("live", {"", first.live, second.live, first.blocks, second.blocks});
  if (before.memory != memory_source::none && after.memory != memory_source::none)
    text += "  " + pad("reserved", 36) + pad(shown_difference(first.reserved, second.reserved), 12) +
            format_bytes(first.reserved) + " → " + format_bytes(second.reserved) + "\n";
  return text + shown_changes("by label", changes.labels) + shown_changes("by stream", changes.streams) +
         shown_changes("by size", changes.sizes);
}

std::string shown_snapshot(snapshot_facts const& facts) {
  constexpr std::size_t most = 8;
  std::string text;
  auto const add = [&](char const* title, auto const& all, auto const& line) {
    std::string lines;
    for (auto const& each : std::span{all}.first(std::min(most, all.size())))
      lines += "  " + pad(lines.empty() ? title : "", 18) + line(each) + "\n";
    if (all.size() > most) lines += "  " + pad("", 18) + "and " + format_count(all.size() - most) + " more\n";
    text += lines;
  };
  add("waiting requests", facts.waiting, [](snapshot_facts::request const& each) {
    return pad(format_bytes(each.bytes), 12) + pad("stream " + std::to_string(each.stream), 12) +
           pad(format_time(each.waited_ns / 1000), 12) + each.scope;
  });
  add("thread caches", facts.caches, [](snapshot_facts::cache const& each) {
    return pad("thread " + std::to_string(each.thread), 12) + pad(format_bytes(each.bytes), 12) +
           format_count(each.allocations) + " allocations, " + format_count(each.frees) + " frees";
  });
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

nlohmann::ordered_json json_of(holder_lists const& all) {
  return {{"streams", json_of(all.streams)}, {"threads", json_of(all.threads)}, {"labels", json_of(all.labels)}};
}

nlohmann::ordered_json json_of(std::vector<change> const& all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (change const& each : all)
    list.push_back({{"name", each.name},
                    {"bytes_before", each.bytes_before},
                    {"bytes_after", each.bytes_after},
                    {"blocks_before", each.blocks_before},
                    {"blocks_after", each.blocks_after}});
  return list;
}

nlohmann::ordered_json json_of(snapshot_facts const& facts) {
  nlohmann::ordered_json made{{"pool", facts.pool},
                              {"device", facts.on_device ? nlohmann::ordered_json(facts.device) : nullptr},
                              {"regions", facts.regions},
                              {"pages", facts.pages},
                              {"pinned_pages", facts.pinned_pages},
                              {"cached_bytes", facts.cached_bytes},
                              {"cached_blocks", facts.cached_blocks},
                              {"pending_bytes", facts.pending_bytes},
                              {"pending_blocks", facts.pending_blocks},
                              {"calls_meanwhile", facts.calls_meanwhile}};
  made["thread_caches"] = made["waiting"] = nlohmann::ordered_json::array();
  for (auto const& each : facts.caches)
    made["thread_caches"].push_back({{"thread", each.thread},
                                     {"allocations", each.allocations},
                                     {"frees", each.frees},
                                     {"cached_bytes", each.bytes}});
  for (auto const& each : facts.waiting)
    made["waiting"].push_back(
        {{"bytes", each.bytes}, {"stream", each.stream}, {"waited_ns", each.waited_ns}, {"scope", each.scope}});
  return made;
}

nlohmann::ordered_json json_of(summary const& of) {
  constexpr std::array<char const*, 4> sources{"none", "log", "replay", "snapshot"};
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
  made["holders_at_peak"] = json_of(of.at_peak);
  made["holders_at_end"] = json_of(of.at_end);
  made["sizes"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < of.sizes.size(); ++i) {
    size_bin const& bin = of.sizes[i];
    if (bin.blocks == 0 && bin.blocks_at_peak == 0 && bin.blocks_at_end == 0) continue;
    made["sizes"].push_back({{"from_bytes", i == 0 ? 0 : std::uint64_t{1} << i},
                             {"allocations", bin.blocks},
                             {"allocated_bytes", bin.bytes},
                             {"blocks_at_peak", bin.blocks_at_peak},
                             {"bytes_at_peak", bin.bytes_at_peak},
                             {"blocks_at_end", bin.blocks_at_end},
                             {"bytes_at_end", bin.bytes_at_end}});
  }
  if (of.snapshot) made["snapshot"] = json_of(*of.snapshot);
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

std::string format_sizes(std::size_t bin) {
  if (bin + 1 == size_bins) return "from " + format_bytes(std::uint64_t{1} << bin);
  return format_bytes(bin == 0 ? 0 : std::uint64_t{1} << bin) + " to " + format_bytes(std::uint64_t{2} << bin);
}

namespace detail {
std::string describe_snapshot(summary const& of) {
  if (of.timed) return "The snapshot has a trace: live and reserved bytes over time are those of its entries.";
  std::string const text = "The snapshot shows one moment.";
  if (of.snapshot->calls_meanwhile == 0) return text;
  return text + " Other threads made " + shown_count(of.snapshot->calls_meanwhile, "call") + " while it was taken.";
}
} // namespace detail

std::string describe_source(summary const& of) {
  switch (of.memory) {
  case memory_source::log: return "The log has the rows of the pool's memory.";
  case memory_source::replay:
    return "The log has no rows of memory. Reserved bytes, addresses and reasons for reuse are those of a replay over "
           "a gpumem pool.";
  case memory_source::snapshot: return detail::describe_snapshot(of);
  case memory_source::none: break;
  }
  return "The log has no rows of memory and begins with live blocks, so it cannot be replayed. Live bytes count the "
         "blocks that it shows.";
}

namespace detail {

// The figures of memory over time, then those of the moment of a snapshot.
std::optional<std::string> of_time(summary const& of, std::string value) {
  return of.timed ? std::optional{std::move(value)} : std::nullopt;
}
std::optional<std::string> of_memory(summary const& of, std::string value) {
  return of.memory == memory_source::none ? std::nullopt : of_time(of, std::move(value));
}
std::optional<std::string> of_snapshot(summary const& of, std::string value) {
  return of.snapshot ? std::optional{std::move(value)} : std::nullopt;
}

std::string shown_pool(snapshot_facts const& facts) {
  return (facts.pool.empty() ? "without a name" : facts.pool) +
         (facts.on_device ? ", device " + std::to_string(facts.device) : "");
}

std::string shown_parts(snapshot_facts const& facts) {
  std::string text = shown_count(facts.regions, "region");
  if (facts.pages > 0) text += ", " + shown_count(facts.pages, "page");
  if (facts.pinned_pages > 0) text += ", " + format_count(facts.pinned_pages) + " of them pinned";
  return text;
}

} // namespace detail

std::vector<figure_row> main_figures(std::span<summary const> all) {
  using namespace detail;
  std::vector<figure_row> rows;
  auto const add = [&](std::string name, auto const& value) {
    figure_row row{std::move(name), {}};
    bool shown = false;
    for (summary const& each : all) {
      std::optional<std::string> text = value(each, each.main);
      shown |= text.has_value();
      row.values.push_back(text ? std::move(*text) : "–");
    }
    if (shown) rows.push_back(std::move(row));
  };
  using shown = std::optional<std::string>;
  using is = summary const&;
  using of = figures const&;
  add("calls", [](is one, of main) { return of_time(one, format_count(main.allocations + main.frees)); });
  add("time", [](is one, of main) { return of_time(one, format_time(main.microseconds)); });
  add("peak live", [](is one, of main) { return of_time(one, bytes_at(main.peak_live.live, main.peak_live)); });
  add("peak reserved",
      [](is one, of main) { return of_memory(one, bytes_at(main.peak_reserved.reserved, main.peak_reserved)); });
  add("live / reserved, peaks", [](is one, of main) {
    return of_memory(one, percent(quotient(main.peak_live.live, main.peak_reserved.reserved)));
  });
  add("most of the peak", [](is one, of main) { return of_time(one, shown_holder(one.at_peak, main.peak_live.live)); });
  add("worst fragmentation", [](is one, of main) {
    return of_memory(one, percent(main.worst.fragmentation()) + " at " + format_time(main.worst.microseconds));
  });
  add("largest fit then", [](is one, of main) { return of_memory(one, shown_fit(main.worst)); });
  for (std::size_t how = 0; how < reasons; ++how) {
    auto const is_used = [how](is one) { return one.main.served[how] > 0 && one.memory != memory_source::snapshot; };
    if (std::ranges::none_of(all, is_used)) continue;
    add("served by " + std::string{reason_names[how]}, [how](is one, of main) {
      return one.snapshot ? shown{} : shown{percent(quotient(main.served[how], main.allocations))};
    });
  }
  add("pages moved", [](is one, of main) {
    if (one.snapshot) return shown{};
    return of_memory(one,
                     main.moves == 0 ? "none" : format_count(main.moves) + " times, " + format_bytes(main.moved_bytes));
  });
  add("waits", [](is one, of main) { return one.snapshot ? shown{} : shown{shown_waits(main)}; });
  add("failed attempts", [](is one, of main) { return of_time(one, format_count(main.failures)); });
  add("live at the end", [](is one, of main) {
    if (one.snapshot) return shown{};
    return of_time(one, format_bytes(main.last.live) + " in " + shown_count(main.last.blocks, "block"));
  });
  add("pool", [](is one, of) { return of_snapshot(one, one.snapshot ? shown_pool(*one.snapshot) : ""); });
  add("live", [](is one, of main) {
    return of_snapshot(one, format_bytes(main.last.live) + " in " + shown_count(main.last.blocks, "block"));
  });
  add("reserved", [](is one, of main) {
    return of_snapshot(one,
                       format_bytes(main.last.reserved) + " in " + (one.snapshot ? shown_parts(*one.snapshot) : ""));
  });
  add("live / reserved",
      [](is one, of main) { return of_snapshot(one, percent(quotient(main.last.live, main.last.reserved))); });
  add("most of the live bytes",
      [](is one, of main) { return of_snapshot(one, shown_holder(one.at_end, main.last.live)); });
  add("free", [](is one, of main) { return of_snapshot(one, format_bytes(main.last.free)); });
  add("in thread caches", [](is one, of) {
    if (!one.snapshot || one.snapshot->cached_blocks == 0) return shown{};
    return shown{format_bytes(one.snapshot->cached_bytes) + " in " + shown_count(one.snapshot->cached_blocks, "block")};
  });
  add("freed, and still in use", [](is one, of) {
    if (!one.snapshot || one.snapshot->pending_blocks == 0) return shown{};
    return shown{format_bytes(one.snapshot->pending_bytes) + " in " +
                 shown_count(one.snapshot->pending_blocks, "block")};
  });
  add("fragmentation", [](is one, of main) { return of_snapshot(one, percent(main.last.fragmentation())); });
  add("largest fit", [](is one, of main) { return of_snapshot(one, shown_fit(main.last)); });
  add("waiting", [](is one, of) {
    if (!one.snapshot || one.snapshot->waiting.empty()) return shown{};
    return shown{shown_count(one.snapshot->waiting.size(), "request")};
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
  std::vector<std::size_t> widths(all.size(), 30);
  for (figure_row const& row : rows)
    for (std::size_t i = 0; i < all.size(); ++i) widths[i] = std::max(widths[i], shown_width(row.values[i]) + 2);
  std::string text;
  for (figure_row const& row : rows) {
    std::string line = "  " + pad(row.name, first_width);
    for (std::size_t i = 0; i < all.size(); ++i) line += pad(row.values[i], widths[i]);
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
    if (each.timed) text += "  holders at peak live:\n" + detail::shown_holders(each.at_peak, each.main.peak_live.live);
    if (each.snapshot) {
      text += "  holders at the snapshot:\n" + detail::shown_holders(each.at_end, each.main.last.live);
      text += detail::shown_snapshot(*each.snapshot);
    }
    text += "  " + describe_source(each) + "\n";
  }
  for (std::size_t i = 1; i < all.size(); ++i) text += detail::shown_changes(all[0], all[i]);
  return text;
}

std::string format_json(std::span<summary const> all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (summary const& each : all) {
    list.push_back(detail::json_of(each));
    if (list.size() == 1) continue;
    auto const changes = compare(all.front(), each);
    list.back()["changes_from_first"] = {{"labels", detail::json_of(changes.labels)},
                                         {"streams", detail::json_of(changes.streams)},
                                         {"sizes", detail::json_of(changes.sizes)}};
  }
  return list.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

} // namespace report
