// Formats the answer.
// SPDX-License-Identifier: Apache-2.0
module;
#include <nlohmann/json.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>
module advise:answer.impl;
import gpumem;
import replay;
import :answer;
import :candidate;
import :limits;
import :options;

namespace advise {

namespace detail {

std::string decimals(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

// "7.6 times", "1.06 times".
std::string times(std::uint64_t value, std::uint64_t least) {
  double const ratio = static_cast<double>(value) / static_cast<double>(std::max<std::uint64_t>(least, 1));
  return decimals(ratio, ratio < 10 ? 2 : 0) + " times";
}

std::string count_of(std::uint64_t count, char const* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string row_of(advice const& given, std::uint64_t place) {
  return "row " + std::to_string(given.trace.operations.lines[place]) + " (" +
         gpumem::format_bytes(given.trace.operations.operations[place].bytes) + ")";
}

std::string reason_of(advice const& given, std::size_t i) {
  figures const& counted = given.all[i].counted;
  switch (given.made.verdicts[i]) {
  case verdict::chosen: return "the answer";
  case verdict::incomplete: return "fails at " + row_of(given, counted.failed);
  case verdict::too_large: return "reserves more than " + gpumem::format_bytes(given.chosen.memory);
  case verdict::many_calls: return times(counted.memory_calls, given.made.fewest_calls) + " the fewest memory calls";
  case verdict::much_memory: return "reserves " + times(counted.reserved, given.made.least) + " the least";
  case verdict::less_simple: return "less simple";
  }
  return {};
}

std::string table_of(advice const& given) {
  std::size_t widest = 0;
  for (candidate const& each : given.all) widest = std::max(widest, each.title.size());
  std::string const blanks(widest, ' ');
  std::string text =
      (std::string("resource") + blanks).substr(0, widest) + "     reserved  driver calls  memory calls\n";
  for (std::size_t i = 0; i < given.all.size(); ++i) {
    candidate const& each = given.all[i];
    std::array<char, 64> cells{};
    std::snprintf(cells.data(), cells.size(), "  %11s  %12llu  %12llu  ",
                  gpumem::format_bytes(each.counted.reserved).c_str(),
                  static_cast<unsigned long long>(each.counted.driver_calls),
                  static_cast<unsigned long long>(each.counted.memory_calls));
    text += (each.title + blanks).substr(0, widest) + cells.data() + reason_of(given, i);
    if (each.counted.waits != 0) text += "; " + count_of(each.counted.waits, "wait");
    text += "\n";
  }
  return text;
}

std::string lines_of(candidate const& taken) {
  std::string text = "  C++      " + taken.cpp + "\n  options  \"" + taken.options + "\" for gpumem_make_pool\n";
  text += "  PyTorch  " + (taken.torch.empty() ? "nothing: its sizes vary" : taken.torch) + "\n";
  if (taken.counted.waits == 0) return text;
  return text + "  Requests wait: co_await memory.acquire(stream, bytes), or gpumem_acquire.\n";
}

std::string least_text(advice const& given) {
  if (!given.least) return {};
  auto const& [bytes, failed] = *given.least;
  std::string text = "The smallest limit: " + gpumem::format_bytes(bytes) + " (limit=" + std::to_string(bytes) +
                     ",effort=1), " + times(bytes, given.trace.operations.peak_live_bytes) + " what is live.";
  if (!failed) return text + "\n";
  return text + " With " + gpumem::format_bytes(limit_step) + " less, the request in " + row_of(given, *failed) +
         " fails.\n";
}

std::string head_of(advice const& given) {
  replay::plan const& of = given.trace.operations;
  std::uint64_t const threads = 1 + *std::ranges::max_element(of.threads);
  std::string text = given.trace.name + ": " + count_of(of.operations.size(), "call") + " of " +
                     count_of(threads, "thread") + " on " + count_of(of.streams, "stream") + "; at most " +
                     gpumem::format_bytes(of.peak_live_bytes) + " live, which no plan can undercut\n";
  if (of.recorded_failures != 0) {
    text += "The recorded program had " + count_of(of.recorded_failures, "request") +
            " that failed: --memory says how "
            "much memory there is.\n";
  }
  return text;
}

std::string_view name_of(verdict of) {
  switch (of) {
  case verdict::chosen: return "chosen";
  case verdict::incomplete: return "incomplete";
  case verdict::too_large: return "too_large";
  case verdict::many_calls: return "many_calls";
  case verdict::much_memory: return "much_memory";
  case verdict::less_simple: return "less_simple";
  }
  return {};
}

} // namespace detail

std::string format_first(advice const& given) {
  if (!given.made.place) return "no resource completes the trace";
  candidate const& taken = given.all[*given.made.place];
  return taken.title + ", which reserves " + gpumem::format_bytes(taken.counted.reserved) + ": " + taken.cpp;
}

std::string format_text(advice const& given) {
  std::string text = detail::head_of(given);
  if (!given.made.place) {
    text += "\nNo resource completes the trace in " + gpumem::format_bytes(given.chosen.memory) + ".\n\n";
  } else {
    candidate const& taken = given.all[*given.made.place];
    text += "\nTake " + taken.title + ".\n" + detail::lines_of(taken) + "\nOn the simulated device it reserves " +
            gpumem::format_bytes(taken.counted.reserved) + " and makes " + std::to_string(taken.counted.driver_calls) +
            " driver calls" + (taken.note.empty() ? "" : " (" + taken.note + ")") +
            ".\nIt is the simplest resource with few memory calls that reserves at most 1.02 times the least.\n\n";
  }
  text += detail::table_of(given);
  if (given.trace.operations.blocks > most_driver_blocks) {
    text += "The driver's pool was not replayed: more than " + std::to_string(most_driver_blocks) +
            " blocks are live at once.\n";
  }
  std::string const least = detail::least_text(given);
  return least.empty() ? text : text + "\n" + least;
}

std::string format_json(advice const& given) {
  replay::plan const& of = given.trace.operations;
  nlohmann::ordered_json whole;
  whole["trace"] = given.trace.file;
  whole["calls"] = of.operations.size();
  whole["peak_live_bytes"] = of.peak_live_bytes;
  whole["memory_bytes"] = given.chosen.memory;
  if (given.made.place) whole["answer"] = given.all[*given.made.place].resource;
  for (std::size_t i = 0; i < given.all.size(); ++i) {
    candidate const& each = given.all[i];
    nlohmann::ordered_json row{{"resource", each.resource},
                               {"verdict", detail::name_of(given.made.verdicts[i])},
                               {"completed", each.counted.completed},
                               {"peak_reserved_bytes", each.counted.reserved},
                               {"driver_calls", each.counted.driver_calls},
                               {"memory_calls", each.counted.memory_calls},
                               {"requests_that_waited", each.counted.waits},
                               {"cpp", each.cpp},
                               {"options", each.options},
                               {"pytorch", each.torch}};
    if (!each.counted.completed) row["failed_row"] = of.lines[each.counted.failed];
    whole["candidates"].push_back(std::move(row));
  }
  if (given.least) {
    whole["least_limit_bytes"] = given.least->bytes;
    if (given.least->failed) whole["failed_row_below"] = of.lines[*given.least->failed];
  }
  return whole.dump(2) + "\n";
}

} // namespace advise
