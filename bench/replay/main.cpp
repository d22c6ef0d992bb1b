// gpumem-replay: replays recorded traces over memory resources and prints what the calls cost.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

import gpumem;
import replay;

namespace {

std::vector<replay::loaded_trace> load(replay::options const& chosen) {
  std::vector<replay::loaded_trace> traces;
  for (std::string const& file : chosen.traces) {
    traces.push_back({replay::trace_name(file), file, replay::make_plan(replay::read_trace_file(file), file)});
    if (chosen.pace == replay::pace_choice::recorded) replay::require_times(traces.back().operations, file);
  }
  return traces;
}

// On the simulated device `all` leaves out the resources whose results differ each time. Returns their names.
std::string leave_out_by_time(replay::options& chosen) {
  std::string names;
  for (auto const& known : replay::resource_names()) {
    if (known.by_time && std::erase(chosen.resources, known.name)) names += " " + std::string{known.name};
  }
  return names;
}

void print_about_simulated(std::string const& names) {
  std::puts("\nOn the simulated device no kernel runs and time means nothing: the tables count calls and bytes.");
  if (names.empty()) return;
  std::printf("Left out, since their counts depend on the speed of this machine:%s. --resource shows them.\n",
              names.c_str());
}

// Measures everything before anything is printed, so that no table is printed in part.
std::vector<replay::result> measure(std::vector<replay::loaded_trace> const& traces, replay::options const& chosen,
                                    replay::chosen_device const& where) {
  std::size_t const passes = replay::passes_of(chosen, where.simulated);
  replay::progress shown{traces.size() * chosen.resources.size() * passes, stderr};
  std::vector<replay::result> results;
  for (std::string const& resource : chosen.resources) {
    for (replay::loaded_trace const& trace : traces) {
      results.push_back(replay::measure_by_name(
          {.trace = &trace, .resource = resource, .chosen = &chosen, .where = &where, .shown = &shown}));
    }
  }
  return results;
}

void write_csv(replay::options const& chosen) {
  std::string const& file = chosen.traces.front();
  replay::write_whole(chosen.csv, replay::to_csv(replay::read_trace_file(file), file));
}

void run(replay::options chosen) {
  auto const traces = load(chosen);
  auto const where = replay::choose_device(chosen.device);
  std::string const names = where.simulated && chosen.all_resources ? leave_out_by_time(chosen) : std::string{};
  std::vector<replay::result> const results = measure(traces, chosen, where);
  std::fputs(replay::format_tables(results).c_str(), stdout);
  if (where.simulated) {
    print_about_simulated(names);
    replay::accept_unordered_frees();
  }
  std::fflush(stdout);
  if (!chosen.json.empty()) replay::write_whole(chosen.json, replay::format_json(results));
}

} // namespace

int main(int count, char** arguments) {
  try {
    std::vector<std::string> const given{arguments + 1, arguments + count};
    replay::add_peers(replay::parse_peers(given));
    std::vector<replay::resource_name> const known = replay::resource_names();
    replay::parsed_options const parsed = replay::parse_options(given, known);
    if (parsed.help) {
      std::fputs(parsed.help->c_str(), stdout);
    } else if (!parsed.chosen.csv.empty()) {
      write_csv(parsed.chosen);
    } else {
      run(parsed.chosen);
    }
    return 0;
  } catch (replay::usage_error const& error) {
    std::fprintf(stderr, "gpumem-replay: %s\nTry 'gpumem-replay --help'.\n", error.what());
    return 2;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem-replay: %s\n", error.what());
    return 1;
  }
}
