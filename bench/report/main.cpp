// gpumem-report: shows what a program did with memory, from its logs.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

import gpumem;
import replay;
import report;

namespace {

constexpr int status_usage = 2;

std::vector<report::recording> read(std::vector<std::string> const& files) {
  std::vector<report::recording> all;
  replay::progress shown{files.size(), stderr};
  for (std::string const& file : files) {
    shown.step("reading " + file);
    for (auto& each : report::read_recordings(file)) all.push_back(std::move(each)); // a pickle: one for each device
  }
  return all;
}

std::vector<report::summary> summarize(std::vector<std::string> const& files) {
  auto const recordings = read(files);
  report::bounds most;
  most.columns /= recordings.size();
  most.frames /= recordings.size();
  replay::progress shown{report::summary_ticks * recordings.size(), stderr};
  std::vector<report::summary> all;
  for (auto const& each : recordings)
    all.push_back(report::summarize(each, most, [&] { shown.step("summarizing " + each.name); }));
  return all;
}

// A picture shows memory over time.
void check_picture(report::summary const& of) {
  if (!of.timed) throw std::runtime_error(of.file + ": the snapshot has no trace, so --svg has no time to show");
}

int run(report::options const& chosen) {
  auto const all = summarize(chosen.files);
  if (!chosen.svg.empty()) std::ranges::for_each(all, check_picture);
  std::string text = report::format_text(all);
  if (!chosen.json.empty()) replay::write_whole(chosen.json, report::format_json(all));
  if (!chosen.svg.empty()) replay::write_whole(chosen.svg, report::format_svg(all));
  if (!chosen.page.empty()) {
    std::string const page = report::format_page(all);
    replay::write_whole(chosen.page, page);
    text += "\nThe page: " + chosen.page + ", " + report::format_bytes(page.size()) + "\n";
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

int fail(char const* reason, char const* end) {
  std::fprintf(stderr, "gpumem-report: %s\n%s", reason, end);
  return status_usage;
}

} // namespace

int main(int count, char** arguments) {
  report::end_if_a_log_is_cut();
  try {
    report::parsed_options const parsed = report::parse_options({arguments + 1, arguments + count});
    if (!parsed.help) return run(parsed.chosen);
    std::fputs(parsed.help->c_str(), stdout);
    return 0;
  } catch (replay::usage_error const& error) {
    return fail(error.what(), "Try 'gpumem-report --help'.\n");
  } catch (std::exception const& error) { return fail(error.what(), ""); }
}
