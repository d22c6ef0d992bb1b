// Forks children, and reads their results through pipes.
// SPDX-License-Identifier: Apache-2.0
#include "forked_runs.hpp"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace gpumem_test {
namespace {

constexpr unsigned longest_seconds = 30;

std::size_t usable_processors() {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return 1;
  return static_cast<std::size_t>(CPU_COUNT(&usable));
}

// A schedule keeps all threads of a child on the processor on which the child starts.
void move_to_processor(std::size_t index) {
  cpu_set_t usable, one;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  CPU_ZERO(&one);
  for (std::size_t at = 0; at < CPU_SETSIZE; ++at) {
    if (!CPU_ISSET(at, &usable) || index-- > 0) continue;
    CPU_SET(at, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

std::string to_text(program_result const& result) {
  std::ostringstream text;
  text << result.trace << ' ' << result.operations << ' ' << result.frees << ' ' << result.frees_elsewhere << '\n';
  for (auto const& [what, times] : result.counts) text << times << ' ' << what << '\n';
  text << "end\n" << result.failure;
  return text.str();
}

program_result from_text(std::string const& from) {
  std::istringstream text{from};
  program_result result;
  text >> result.trace >> result.operations >> result.frees >> result.frees_elsewhere;
  std::string line;
  std::getline(text, line);
  while (std::getline(text, line) && line != "end") {
    auto const space = line.find(' ');
    result.counts[line.substr(space + 1)] = std::stoull(line);
  }
  if (line != "end") throw std::runtime_error{"a child's result is cut"};
  result.failure.assign(std::istreambuf_iterator<char>{text}, {});
  return result;
}

void write_all(int to, std::string const& text) {
  for (std::size_t done = 0; done < text.size();) {
    auto const written = write(to, text.data() + done, text.size() - done);
    if (written <= 0) std::_Exit(3);
    done += static_cast<std::size_t>(written);
  }
}

std::string read_all(int from) {
  std::string text;
  char part[4096];
  for (ssize_t got = 0; (got = read(from, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(got));
  return text;
}

void expect_one_thread() {
  std::filesystem::directory_iterator const tasks{"/proc/self/task"};
  if (std::distance(begin(tasks), end(tasks)) != 1) throw std::logic_error{"children are forked from one thread only"};
}

} // namespace

forked_runs::forked_runs(work what) : what_{std::move(what)}, processors_{usable_processors()} {}

forked_runs::~forked_runs() {
  for (auto const& one : running_) {
    kill(one.process, SIGKILL);
    waitpid(one.process, nullptr, 0);
    close(one.output);
  }
}

void forked_runs::start(std::uint64_t seed) {
  expect_one_thread();
  std::fflush(nullptr);
  int ends[2];
  if (pipe(ends) != 0) throw std::system_error{errno, std::generic_category(), "pipe"};
  auto const slot = started_++ % processors_;
  // _Fork skips the fork handlers: with them gpumem would treat the child as one that must not use the driver.
  auto const process = _Fork();
  if (process < 0) throw std::system_error{errno, std::generic_category(), "fork"};
  if (process == 0) {
    close(ends[0]);
    alarm(longest_seconds);
    move_to_processor(slot);
    write_all(ends[1], to_text(what_(seed)));
    std::_Exit(0);
  }
  close(ends[1]);
  running_.push_back({seed, process, ends[0]});
}

program_result forked_runs::finish_first() {
  auto const one = running_.front();
  running_.pop_front();
  auto const text = read_all(one.output);
  close(one.output);
  int status = 0;
  waitpid(one.process, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return from_text(text);
  program_result result;
  result.failure = WIFSIGNALED(status) ? std::string{"ended by signal: "} + strsignal(WTERMSIG(status))
                                       : "ended with status " + std::to_string(WEXITSTATUS(status));
  return result;
}

} // namespace gpumem_test
