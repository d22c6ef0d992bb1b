// Writes the page: figures as JSON, curves and maps as packed numbers, and the script that draws them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <zlib.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "assets.hpp"
module report:page.impl;
import :changes;
import :events;
import :summary;
import :text;

namespace report {

namespace detail {

using json = nlohmann::ordered_json;

// Numbers of all recordings, one array after the other.
class number_store {
public:
  // Adds value(each) for each element, and notes name, type, offset and length.
  template <class Number, class Elements, class Value>
  void add(json& arrays, std::string const& name, Elements const& elements, Value const& value) {
    std::size_t const offset = bytes_.size();
    for (auto const& each : elements) {
      auto const number = static_cast<Number>(value(each));
      std::array<char, sizeof number> raw;
      std::memcpy(raw.data(), &number, sizeof number);
      bytes_.append(raw.data(), raw.size());
    }
    arrays.push_back(json::array({name, kind<Number>(), offset, (bytes_.size() - offset) / sizeof(Number)}));
  }
  std::string const& bytes() const noexcept { return bytes_; }

private:
  template <class Number> static constexpr char const* kind() {
    if constexpr (sizeof(Number) == 1) return "u1";
    if constexpr (sizeof(Number) == 8) return "f8";
    return static_cast<Number>(0.5) == 0 ? "u4" : "f4";
  }
  std::string bytes_;
};

std::string packed(std::string const& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string result(size, '\0');
  auto* const target = reinterpret_cast<Bytef*>(result.data());
  if (compress2(target, &size, reinterpret_cast<Bytef const*>(bytes.data()), bytes.size(), Z_BEST_COMPRESSION) != Z_OK)
    throw std::runtime_error("the curves cannot be packed");
  result.resize(size);
  return result;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8U | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : letters[group >> (18 - 6 * j) & 63U];
  }
  return text;
}

// Text that stands inside a script element. `</` would end it.
std::string inside_script(json const& data) {
  std::string text = data.dump(-1, ' ', false, json::error_handler_t::replace);
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3) text.replace(at, 2, "<\\/");
  return text;
}

std::string escaped(std::string_view text) {
  std::string made;
  for (char const c : text) {
    if (c == '<')
      made += "&lt;";
    else if (c == '>')
      made += "&gt;";
    else if (c == '&')
      made += "&amp;";
    else
      made += c;
  }
  return made;
}

json page_json(moment const& when) {
  return {{"row", when.row},
          {"microseconds", when.microseconds},
          {"live", when.live},
          {"blocks", when.blocks},
          {"reserved", when.reserved},
          {"free", when.free},
          {"largest", when.largest_free}};
}

json page_json(std::vector<holder> const& all) {
  constexpr std::size_t most = 200;
  json list = json::array();
  for (holder const& each : std::span{all}.first(std::min(most, all.size())))
    list.push_back({{"name", each.name}, {"bytes", each.bytes}, {"blocks", each.blocks}});
  return list;
}

json page_json(holder_lists const& all) {
  return {{"labels", page_json(all.labels)}, {"streams", page_json(all.streams)}, {"threads", page_json(all.threads)}};
}

json page_json(std::vector<change> const& all) {
  constexpr std::size_t most = 200;
  json list = json::array();
  for (change const& each : std::span{all}.first(std::min(most, all.size())))
    list.push_back(
        json::array({each.name, each.bytes_before, each.bytes_after, each.blocks_before, each.blocks_after}));
  return list;
}

json page_json(summary const& before, summary const& after) {
  auto const changes = compare(before, after);
  return {{"before", page_json(compared_moment(before))},
          {"after", page_json(compared_moment(after))},
          {"labels", page_json(changes.labels)},
          {"streams", page_json(changes.streams)},
          {"sizes", page_json(changes.sizes)}};
}

json page_json(snapshot_facts const& facts) {
  constexpr std::size_t most = 200;
  json made{{"caches", json::array()}, {"waiting", json::array()}};
  for (auto const& each : std::span{facts.caches}.first(std::min(most, facts.caches.size())))
    made["caches"].push_back(json::array({each.thread, each.bytes, each.allocations, each.frees}));
  for (auto const& each : std::span{facts.waiting}.first(std::min(most, facts.waiting.size())))
    made["waiting"].push_back(json::array({each.bytes, each.stream, each.waited_ns, each.scope}));
  return made;
}

json arrays_of(summary const& of, number_store& store) {
  json arrays = json::array();
  std::uint64_t before = 0;
  store.add<double>(arrays, "time", of.columns,
                    [&](column const& each) { return each.microseconds - std::exchange(before, each.microseconds); });
  store.add<float>(arrays, "live_least", of.columns, [](column const& each) { return each.live_least; });
  store.add<float>(arrays, "live_most", of.columns, [](column const& each) { return each.live_most; });
  store.add<float>(arrays, "reserved", of.columns, [](column const& each) { return each.reserved_most; });
  store.add<float>(arrays, "free", of.columns, [](column const& each) { return each.worst.free; });
  store.add<float>(arrays, "largest", of.columns, [](column const& each) { return each.worst.largest_free; });
  for (std::size_t how = 0; how < reasons; ++how)
    store.add<std::uint32_t>(arrays, "served" + std::to_string(how), of.columns,
                             [how](column const& each) { return each.served[how]; });
  std::vector<std::uint8_t> cells, label_cells, shares;
  for (memory_frame const& each : of.frames) {
    cells.insert(cells.end(), each.cells.begin(), each.cells.end());
    label_cells.insert(label_cells.end(), each.label_cells.begin(), each.label_cells.end());
    shares.insert(shares.end(), each.shares.begin(), each.shares.end());
  }
  auto const same = [](std::uint8_t value) { return value; };
  store.add<std::uint8_t>(arrays, "cells", cells, same);
  store.add<std::uint8_t>(arrays, "label_cells", label_cells, same);
  store.add<std::uint8_t>(arrays, "shares", shares, same);
  return arrays;
}

json page_json(summary const& of, number_store& store) {
  constexpr std::array<char const*, 4> sources{"none", "log", "replay", "snapshot"};
  json made{{"name", of.name},
            {"source", describe_source(of)},
            {"memory", sources[static_cast<std::size_t>(of.memory)]},
            {"timed", of.timed},
            {"rows", of.main.rows},
            {"rows_of_column", of.rows_of_column},
            {"microseconds", of.main.microseconds},
            {"failures", of.main.failures},
            {"wait_count", of.main.waits},
            {"refusals", of.main.refusals},
            {"served", of.main.served},
            {"peak_live", page_json(of.main.peak_live)},
            {"peak_reserved", page_json(of.main.peak_reserved)},
            {"worst", page_json(of.main.worst)},
            {"last", page_json(of.main.last)},
            {"cell_bytes", of.cell_bytes},
            {"cells", of.frames.empty() ? 0 : of.frames.front().cells.size()},
            {"colors", of.colors},
            {"label_colors", of.label_colors}};
  made["holders"] = {{"peak", page_json(of.at_peak)}, {"end", page_json(of.at_end)}};
  if (of.snapshot) made["snapshot"] = page_json(*of.snapshot);
  for (char const* list : {"waits", "sizes", "runs", "frames"}) made[list] = json::array();
  for (wait_span const& each : of.waits)
    made["waits"].push_back(
        {{"begin", each.begin}, {"end", each.end}, {"bytes", each.bytes}, {"refused", each.refused}});
  for (std::size_t i = 0; i < of.sizes.size(); ++i) {
    size_bin const& bin = of.sizes[i];
    if (bin.blocks == 0 && bin.blocks_at_peak == 0 && bin.blocks_at_end == 0) continue;
    made["sizes"].push_back({{"from", std::uint64_t{1} << i},
                             {"blocks", bin.blocks},
                             {"bytes", bin.bytes},
                             {"blocks_at_peak", bin.blocks_at_peak},
                             {"bytes_at_peak", bin.bytes_at_peak},
                             {"blocks_at_end", bin.blocks_at_end},
                             {"bytes_at_end", bin.bytes_at_end}});
  }
  // addresses as text: the numbers of a script have 53 bits
  constexpr std::size_t most_runs = 4096;
  for (address_run const& each : std::span{of.runs}.first(std::min(most_runs, of.runs.size())))
    made["runs"].push_back(json::array({std::to_string(each.begin), each.end - each.begin}));
  for (memory_frame const& each : of.frames) made["frames"].push_back(page_json(each.when));
  made["arrays"] = arrays_of(of, store);
  return made;
}

void add_element(std::string& page, std::string_view begin, std::string_view text, std::string_view end) {
  ((page += begin) += text) += end;
}

} // namespace detail

std::string format_page(std::span<summary const> all) {
  using detail::json;
  detail::number_store store;
  json data;
  data["reasons"] = reason_names;
  data["figures"] = json::array();
  for (figure_row const& row : main_figures(all)) {
    json line = json::array({row.name});
    for (std::string const& value : row.values) line.push_back(value);
    data["figures"].push_back(std::move(line));
  }
  data["recordings"] = json::array();
  for (summary const& each : all) data["recordings"].push_back(detail::page_json(each, store));
  for (std::size_t i = 1; i < all.size(); ++i)
    data["recordings"][i]["changes"] = detail::page_json(all.front(), all[i]);
  std::string page = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                     "'unsafe-inline'; script-src 'unsafe-inline'\">\n";
  detail::add_element(page, "<title>", detail::escaped(all.front().name), ": memory</title>\n");
  detail::add_element(page, "<style>\n", report_assets::style, "</style>\n</head>\n<body>\n<main></main>\n");
  detail::add_element(page, "<script type=\"application/json\" id=\"figures-data\">", detail::inside_script(data),
                      "</script>\n");
  detail::add_element(page, "<script type=\"text/plain\" id=\"curves-data\">",
                      detail::base64(detail::packed(store.bytes())), "</script>\n");
  detail::add_element(page, "<script type=\"text/plain\" id=\"license-data\">\n", report_assets::d3_license,
                      "</script>\n");
  detail::add_element(page, "<script>\n", report_assets::d3, "\n</script>\n");
  detail::add_element(page, "<script>\n", report_assets::script, "</script>\n");
  detail::add_element(page, "<script>\n", report_assets::views, "</script>\n</body>\n</html>\n");
  return page;
}

} // namespace report
