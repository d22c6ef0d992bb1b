// Draws the picture of a report.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module report:svg.impl;
import :summary;
import :text;

namespace report {

namespace detail {

constexpr double svg_width = 860, svg_left = 84, svg_right = 20, plot_width = svg_width - svg_left - svg_right;
constexpr double bytes_height = 190, share_height = 56, panel_height = 348;

std::string svg_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  std::string made = text.data();
  return made.ends_with(".0") ? made.substr(0, made.size() - 2) : made;
}

std::string svg_escaped(std::string_view text) {
  std::string made;
  for (char const c : text) {
    if (c == '<')
      made += "&lt;";
    else if (c == '&')
      made += "&amp;";
    else if (static_cast<unsigned char>(c) >= ' ')
      made += c;
  }
  return made;
}

std::string svg_text(double x, double y, std::string_view text, std::string_view anchor = "start",
                     std::string_view more = "") {
  return "<text x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" text-anchor=\"" + std::string{anchor} + "\"" +
         std::string{more} + ">" + svg_escaped(text) + "</text>\n";
}

std::string svg_line(double y) {
  return "<line x1=\"" + svg_number(svg_left) + "\" x2=\"" + svg_number(svg_left + plot_width) + "\" y1=\"" +
         svg_number(y) + "\" y2=\"" + svg_number(y) + "\" stroke=\"#e4e8ec\"/>\n";
}

// The most of a value in each pixel column. A value stays until its next column.
template <class Value> std::vector<double> pixels(summary const& of, Value const& value) {
  constexpr auto count = static_cast<std::size_t>(plot_width);
  double const scale = static_cast<double>(count - 1) / std::max(1.0, static_cast<double>(of.main.microseconds));
  std::vector<double> made(count, -1);
  double last = 0;
  std::size_t filled = 0; // all pixels before it have a value
  for (column const& each : of.columns) {
    auto const at = static_cast<std::size_t>(static_cast<double>(each.microseconds) * scale);
    for (; filled < at; ++filled) made[filled] = std::max(made[filled], last);
    last = value(each);
    made[at] = std::max(made[at], last);
  }
  for (; filled < count; ++filled) made[filled] = std::max(made[filled], last);
  return made;
}

std::string svg_path(std::vector<double> const& values, double most, double bottom, double height) {
  std::string path = "M" + svg_number(svg_left);
  double before = -1;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == before) continue;
    if (i > 0) path += "H" + svg_number(svg_left + static_cast<double>(i));
    path += (i == 0 ? "," : "V") + svg_number(bottom - height * values[i] / most);
    before = values[i];
  }
  return path + "H" + svg_number(svg_left + plot_width);
}

std::string svg_area(std::string const& path, double bottom, std::string_view fill) {
  return "<path d=\"" + path + "V" + svg_number(bottom) + "H" + svg_number(svg_left) + "Z\" fill=\"" +
         std::string{fill} + "\"/>\n";
}

// 1, 2 or 5 times a power of ten, so that there are at most six.
double time_step(double most) {
  for (double step = 1;; step *= 10)
    for (double const factor : {1.0, 2.0, 5.0})
      if (most / (step * factor) <= 6) return step * factor;
}

std::string time_axis(summary const& of, double y) {
  std::string made;
  auto const most = std::max(1.0, static_cast<double>(of.main.microseconds));
  double const unit = most < 1e3 ? 1 : most < 1e6 ? 1e3 : 1e6;
  char const* const name = most < 1e3 ? "µs" : most < 1e6 ? "ms" : "s";
  double const step = time_step(most);
  for (double at = 0; at <= most; at += step)
    made += svg_text(svg_left + plot_width * at / most, y, svg_number(at / unit) + " " + name, "middle");
  return made;
}

std::string bytes_panel(summary const& of, double top) {
  auto const most =
      1.05 * static_cast<double>(std::max({of.main.peak_live.live, of.main.peak_reserved.reserved, std::uint64_t{1}}));
  double const bottom = top + bytes_height;
  std::string made;
  double const step = std::exp2(std::ceil(std::log2(most / 5)));
  for (double at = 0; at <= most; at += step) {
    double const y = bottom - bytes_height * at / most;
    made += svg_line(y) + svg_text(svg_left - 8, y + 4, format_bytes(static_cast<std::uint64_t>(at)), "end");
  }
  auto const live = pixels(of, [](column const& each) { return static_cast<double>(each.live_most); });
  made += svg_area(svg_path(live, most, bottom, bytes_height), bottom, "#8fbf92");
  if (of.memory == memory_source::none) return made;
  auto const reserved = pixels(of, [](column const& each) { return static_cast<double>(each.reserved_most); });
  return made + "<path d=\"" + svg_path(reserved, most, bottom, bytes_height) +
         "\" fill=\"none\" stroke=\"#8a5a00\" stroke-width=\"1.8\"/>\n";
}

std::string share_panel(summary const& of, double top) {
  double const bottom = top + share_height;
  std::string made = svg_text(svg_left, top - 8, "fragmentation: 1 − largest free range / free bytes");
  for (double const at : {0.0, 0.5, 1.0}) {
    double const y = bottom - share_height * at;
    made += svg_line(y) + svg_text(svg_left - 8, y + 4, svg_number(100 * at) + " %", "end");
  }
  auto const shares = pixels(of, [](column const& each) { return each.worst.fragmentation(); });
  return made + svg_area(svg_path(shares, 1, bottom, share_height), bottom, "#e3a5a5");
}

std::string panel(summary const& of, double top) {
  std::string made = svg_text(20, top + 20, of.name, "start", " font-size=\"15\" font-weight=\"bold\"");
  made += "<rect x=\"" + svg_number(svg_left) + "\" y=\"" + svg_number(top + 32) +
          "\" width=\"12\" height=\"12\" fill=\"#8fbf92\"/>\n";
  made += svg_text(svg_left + 18, top + 43, "live, at most " + format_bytes(of.main.peak_live.live));
  if (of.memory != memory_source::none) {
    made += "<rect x=\"" + svg_number(svg_left + 200) + "\" y=\"" + svg_number(top + 37) +
            "\" width=\"12\" height=\"3\" fill=\"#8a5a00\"/>\n";
    made += svg_text(svg_left + 218, top + 43,
                     std::string{of.memory == memory_source::replay ? "reserved by a replayed pool" : "reserved"} +
                         ", at most " + format_bytes(of.main.peak_reserved.reserved));
    made += share_panel(of, top + bytes_height + 82);
  }
  return made + bytes_panel(of, top + 54) + time_axis(of, top + bytes_height + share_height + 98);
}

} // namespace detail

std::string format_svg(std::span<summary const> all) {
  std::string const height = detail::svg_number(detail::panel_height * static_cast<double>(all.size()) + 10);
  std::string made = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 " + height +
                     "\" width=\"860\" height=\"" + height +
                     "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#1f2328\" role=\"img\">\n"
                     "<title>Live and reserved memory over time</title>\n<rect width=\"860\" height=\"" +
                     height + "\" fill=\"#ffffff\"/>\n";
  for (std::size_t i = 0; i < all.size(); ++i)
    made += detail::panel(all[i], detail::panel_height * static_cast<double>(i));
  return made + "</svg>\n";
}

} // namespace report
