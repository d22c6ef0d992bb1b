// gpumem-top: shows the pools of all processes of the user that publish them.
// SPDX-License-Identifier: Apache-2.0
#include "../replay/command_line.hpp"
#include "text.hpp"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

namespace {

constexpr int status_failed = 1; // the pages cannot be read
constexpr int status_usage = 2;  // the command line is wrong

struct options {
  bool once = false;
  bool prometheus = false;
  double interval = 1;
};

void print_once(options const& chosen) {
  auto const all = top::read_pages(gpumem::detail::monitor_folder, geteuid());
  std::string const text = chosen.prometheus ? top::format_prometheus(all) : top::format_table(all);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

[[noreturn]] void print_for_ever(options const& chosen) {
  for (;;) {
    std::fputs("\033[H\033[2J", stdout);
    print_once(chosen);
    std::this_thread::sleep_for(std::chrono::duration<double>{chosen.interval});
  }
}

} // namespace

int main(int count, char** arguments) {
  options chosen;
  CLI::App app{"Shows the pools of all processes of the user that run with GPUMEM_MONITOR=1.", "gpumem-top"};
  replay::declare_version(app);
  app.add_flag("--once", chosen.once, "print one table; the default unless stdout is a terminal");
  app.add_flag("--prometheus", chosen.prometheus, "print the numbers once, as text for Prometheus");
  app.add_option("--interval", chosen.interval, "between two tables on a terminal (1)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 3600.0).description(""));
  try {
    app.parse(count, arguments);
    if (chosen.once || chosen.prometheus || isatty(STDOUT_FILENO) == 0)
      print_once(chosen);
    else
      print_for_ever(chosen);
    return 0;
  } catch (CLI::Success const& asked) {
    return app.exit(asked); // prints the help or the version
  } catch (CLI::ParseError const& error) {
    std::fprintf(stderr, "gpumem-top: %s\nTry 'gpumem-top --help'.\n", error.what());
    return status_usage;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpumem-top: %s\n", error.what());
    return status_failed;
  }
}
