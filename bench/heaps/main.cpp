// gpumem-heap-bench: allocators that kernels call, side by side. Every block of every timed launch is stamped and
// compared afterwards.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../table.hpp"
#include "children.hpp"
#include "measure.hpp"

namespace {

using heaps::result;
using heaps::test;

// Allocators that the build did not find are missing here.
constexpr std::array all_kinds{
    heaps::heap_kind{"gpumem", heaps::make_gpumem},
    heaps::heap_kind{"bump", heaps::make_bump},
#ifdef HEAPS_GALLATIN
    heaps::heap_kind{"gallatin", heaps::make_gallatin},
#endif
#ifdef HEAPS_OUROBOROS
    heaps::heap_kind{"ouroboros", heaps::make_ouroboros},
    heaps::heap_kind{"ouroboros_chunks", heaps::make_ouroboros_chunks},
#endif
    heaps::heap_kind{"cuda", heaps::make_cuda},
};

std::vector<heaps::heap_kind> chosen_kinds(std::vector<std::string> const& names) {
  if (names.empty()) return {all_kinds.begin(), all_kinds.end()};
  std::vector<heaps::heap_kind> kinds;
  for (auto const& name : names) {
    auto const kind = std::ranges::find_if(all_kinds, [&](auto const& each) { return each.name == name; });
    if (kind == all_kinds.end()) throw std::invalid_argument("this build has no heap '" + name + "'");
    kinds.push_back(*kind);
  }
  return kinds;
}

std::string number(double value) {
  if (value < 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

struct column {
  heaps::heap_kind kind;
  std::vector<result> results;
};

// Prints a table of one figure. A cell of a heap that failed has an exclamation mark, or what happened instead.
void print_table(std::string const& title, std::vector<test> const& tests, std::vector<column> const& columns,
                 double result::* figure) {
  std::vector<bench::line> lines{{title}};
  for (auto const& each : columns) lines.front().emplace_back(each.kind.name);
  for (std::size_t i = 0; i < tests.size(); ++i) {
    bench::line cells{tests[i].label()};
    bool any = false;
    for (auto const& each : columns) {
      auto const& measured = each.results[i];
      any |= measured.*figure >= 0;
      cells.push_back(number(measured.*figure) + (measured.fault().empty() ? "" : "!"));
    }
    if (any) lines.push_back(std::move(cells));
  }
  if (lines.size() > 1) std::printf("%s\n", bench::aligned(lines, 1).c_str());
}

// Prints what is wrong with the heaps. Returns whether a heap failed.
bool print_faults(std::vector<test> const& tests, std::vector<column> const& columns) {
  bool failed = false;
  for (auto const& each : columns) {
    std::size_t left_out = 0;
    for (std::size_t i = 0; i < tests.size(); ++i) {
      auto const& measured = each.results[i];
      auto const fault = measured.fault();
      auto const& text = fault.empty() ? measured.note : fault;
      if (text == heaps::not_run) ++left_out;
      if (text.empty() || text == heaps::not_possible || text == heaps::not_run) continue;
      std::printf("%s: %s: %s\n", each.kind.name, tests[i].label().c_str(), text.c_str());
      failed = true;
    }
    if (left_out != 0) std::printf("%s: %zu tests were left out\n", each.kind.name, left_out);
  }
  return failed;
}

struct figure {
  char const* title;
  char const* key;
  double result::* value;
};
constexpr std::array figures{
    figure{"allocate, warm, us", "allocate_warm_us", &result::allocate_warm},
    figure{"allocate, cold, us", "allocate_cold_us", &result::allocate_cold},
    figure{"free, warm, us", "free_warm_us", &result::free_warm},
    figure{"free, cold, us", "free_cold_us", &result::free_cold},
    figure{"churn, warm, us a launch", "churn_warm_us", &result::churn_warm},
    figure{"churn, cold, us a launch", "churn_cold_us", &result::churn_cold},
    figure{"operations a us", "operations_per_us", &result::operations_per_microsecond},
    figure{"utilization", "utilization", &result::utilization},
    figure{"served until null", "served", &result::served},
    figure{"... after a free of all", "served_again", &result::served_again},
    figure{"operations", "operations", &result::operations},
    figure{"lost bytes", "lost_bytes", &result::lost_bytes},
};

void write_json(std::string const& path, std::vector<test> const& tests, std::vector<column> const& columns) {
  auto all = nlohmann::ordered_json::array();
  for (auto const& each : columns) {
    for (std::size_t i = 0; i < tests.size(); ++i) {
      auto const& measured = each.results[i];
      nlohmann::ordered_json row{{"heap", each.kind.name}, {"test", tests[i].label()}, {"threads", tests[i].threads}};
      for (auto const& known : figures)
        if (measured.*known.value >= 0) row[known.key] = measured.*known.value;
      row["repeats"] = measured.repeats;
      row["fault"] = measured.fault();
      row["note"] = measured.note;
      all.push_back(std::move(row));
    }
  }
  std::ofstream file{path};
  file << all.dump(2) << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

int run(heaps::options const& with) {
  auto const tests = heaps::tests_of(with);
  std::vector<column> columns;
  for (auto const& kind : chosen_kinds(with.names)) {
    auto& added = columns.emplace_back(kind);
    added.results = heaps::run_apart(kind, tests, with, [&](test const& which, result const& measured) {
      auto const fault = measured.fault();
      std::fprintf(stderr, "%s: %s: %s\n", kind.name, which.label().c_str(),
                   !measured.note.empty() ? measured.note.c_str()
                   : fault.empty()        ? "ok"
                                          : fault.c_str());
    });
  }
  for (auto const& known : figures) print_table(known.title, tests, columns, known.value);
  if (!with.json.empty()) write_json(with.json, tests, columns);
  return print_faults(tests, columns) ? 1 : 0;
}

} // namespace

int main(int count, char** arguments) {
  CLI::App app{"Allocators that kernels call, side by side. Every block of every timed launch is stamped and compared "
               "afterwards. Needs a GPU. The exit status is 1 if blocks of a heap overlap, or requests failed."};
  heaps::options with;
  bool quick = false;
  std::string names;
  for (auto const& kind : all_kinds) names += std::string{names.empty() ? "" : ", "} + kind.name;
  app.add_option("--threads", with.threads, "numbers of threads, one block each")->delimiter(',');
  app.add_option("--sizes", with.bytes, "sizes in bytes, multiples of 16")->delimiter(',');
  app.add_option("--peers", with.names, "the heaps: " + names + "; by default all")->delimiter(',');
  app.add_option("--repeats", with.repeats, "most warm repeats, whose medians are shown")->check(CLI::PositiveNumber);
  app.add_option("--seconds", with.seconds, "most seconds of warm repeats of a test");
  app.add_option("--patience", with.patience, "seconds after which a test counts as hung")->check(CLI::PositiveNumber);
  app.add_option("--budget", with.budget, "seconds for all tests of a heap; what is left then is not run");
  app.add_option("--heap", with.heap_bytes, "size of each heap, such as 16GiB")->transform(CLI::AsSizeValue(false));
  app.add_option("--operations", with.operations, "operations of the long run; 0: none");
  app.add_flag("--quick", quick, "five sizes, five repeats, and a long run of 10^8 operations");
  app.add_option("--json", with.json, "also write the results to this file")->type_name("FILE");
  CLI11_PARSE(app, count, arguments);
  if (quick) {
    if (app.count("--sizes") == 0) with.bytes = {16, 64, 512, 4096, 8192};
    if (app.count("--repeats") == 0) with.repeats = 5;
    if (app.count("--operations") == 0) with.operations = 100'000'000;
  }
  try {
    for (auto const bytes : with.bytes)
      if (bytes == 0 || bytes % 16 != 0) throw std::invalid_argument("a size is a multiple of 16 bytes");
    for (auto const threads : with.threads)
      if (threads == 0) throw std::invalid_argument("a number of threads is at least 1");
    return run(with);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem-heap-bench: %s\n", error.what());
    return 2;
  }
}
