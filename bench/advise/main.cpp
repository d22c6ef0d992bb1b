// gpumem-advise: replays a recorded trace over memory resources and says which one to take.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

import gpumem;
import replay;
import advise;

namespace {

constexpr int status_none = 1;  // no resource completes the trace
constexpr int status_usage = 2; // the command line is wrong, or the trace cannot be read
constexpr std::size_t first_rows = 1'000'000;

struct judged {
  std::vector<advise::candidate> all;
  advise::choice made;
};

judged judge(replay::loaded_trace const& trace, advise::options const& chosen) {
  judged result{advise::candidates_for(trace.operations, chosen.memory), {}};
  replay::progress shown{result.all.size(), stderr};
  advise::replay_all(trace, result.all, chosen.memory, shown);
  result.made = advise::choose(result.all, trace.operations.operations.size(), chosen.memory);
  return result;
}

// A long trace takes long, so its beginning is judged before.
void print_first(replay::loaded_trace const& trace, advise::options const& chosen) {
  replay::loaded_trace const begin{trace.name, trace.file, replay::first_operations(trace.operations, first_rows)};
  auto const result = judge(begin, chosen);
  std::fprintf(stderr, "After the first million calls: %s\n",
               advise::format_first({begin, chosen, result.all, result.made, {}}).c_str());
}

int run(advise::options const& chosen) {
  replay::loaded_trace const trace{replay::trace_name(chosen.trace), chosen.trace,
                                   replay::make_plan(replay::read_trace_file(chosen.trace), chosen.trace)};
  if (trace.operations.operations.size() > first_rows) print_first(trace, chosen);
  auto const result = judge(trace, chosen);
  advise::advice given{trace, chosen, result.all, result.made, {}};
  if (chosen.bisect) {
    replay::progress shown{20, stderr};
    given.least = advise::find_least_limit(trace, shown);
  }
  if (!chosen.json.empty()) replay::write_whole(chosen.json, advise::format_json(given));
  std::fputs(advise::format_text(given).c_str(), stdout);
  return given.made.place ? 0 : status_none;
}

int fail(char const* reason, char const* end) {
  std::fprintf(stderr, "gpumem-advise: %s\n%s", reason, end);
  return status_usage;
}

} // namespace

int main(int count, char** arguments) {
  try {
    advise::parsed_options const parsed = advise::parse_options({arguments + 1, arguments + count});
    if (!parsed.help) return run(parsed.chosen);
    std::fputs(parsed.help->c_str(), stdout);
    return 0;
  } catch (replay::usage_error const& error) {
    return fail(error.what(), "Try 'gpumem-advise --help'.\n");
  } catch (std::exception const& error) { return fail(error.what(), ""); }
}
