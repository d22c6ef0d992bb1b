// gpumem-replay: replays recorded traces over memory resources and prints what the calls cost.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

import gpumem;
import replay;

namespace {

constexpr int status_failed = 1;     // nothing was measured
constexpr int status_usage = 2;      // the command line is wrong
constexpr int status_incomplete = 3; // a resource could not replay a trace; the other rows were measured

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

struct measured {
  std::vector<replay::result> rows;
  std::vector<std::string> left_out; // what could not be measured, and why
};

void measure_row(replay::run_config const& what, measured& all) {
  try {
    replay::result const row = replay::measure_by_name(what);
    if (what.where->simulated) replay::accept_unordered(what.trace->operations.frees_elsewhere != 0);
    all.rows.push_back(row);
  } catch (std::exception const& error) {
    all.left_out.push_back(std::string{what.resource} + " could not replay " + what.trace->file + ": " + error.what());
  }
}

// Measures everything before anything is printed, so that no table is printed in part. A resource that cannot replay a
// trace has no row for it.
measured measure(std::vector<replay::loaded_trace> const& traces, replay::options const& chosen,
                 replay::chosen_device const& where) {
  std::size_t const rows = traces.size() * chosen.resources.size() * chosen.threads.size();
  replay::progress shown{rows * replay::passes_of(chosen, where.simulated), stderr};
  measured all;
  for (std::string const& resource : chosen.resources) {
    for (replay::loaded_trace const& trace : traces) {
      for (unsigned const threads : chosen.threads) {
        measure_row({&trace, resource, &chosen, threads, &where, &shown}, all);
      }
    }
  }
  return all;
}

void write_csv(replay::options const& chosen) {
  std::string const& file = chosen.traces.front();
  replay::write_whole(chosen.csv, replay::to_csv(replay::read_trace_file(file), file));
}

int run(replay::options chosen) {
  auto const traces = load(chosen);
  auto const where = replay::choose_device(chosen.device);
  std::string const names = where.simulated && chosen.all_resources ? leave_out_by_time(chosen) : std::string{};
  measured const all = measure(traces, chosen, where);
  std::fputs(replay::format_tables(all.rows).c_str(), stdout);
  if (where.simulated && !all.rows.empty()) print_about_simulated(names);
  std::fflush(stdout);
  for (std::string const& each : all.left_out) std::fprintf(stderr, "gpumem-replay: %s\n", each.c_str());
  if (!chosen.json.empty()) replay::write_whole(chosen.json, replay::format_json(all.rows));
  return all.left_out.empty() ? 0 : status_incomplete;
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
      return run(parsed.chosen);
    }
    return 0;
  } catch (replay::usage_error const& error) {
    std::fprintf(stderr, "gpumem-replay: %s\nTry 'gpumem-replay --help'.\n", error.what());
    return status_usage;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem-replay: %s\n", error.what());
    return status_failed;
  }
}
