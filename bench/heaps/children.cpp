// SPDX-License-Identifier: Apache-2.0
#include "children.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace heaps {
namespace {

using clock_type = std::chrono::steady_clock;

void write_line(int pipe, std::string line) {
  line += '\n';
  for (std::size_t sent = 0; sent < line.size();) {
    auto const part = ::write(pipe, line.data() + sent, line.size() - sent);
    if (part <= 0) std::_Exit(3);
    sent += static_cast<std::size_t>(part);
  }
}

// The child: writes a line for each test from `first` on. The output of the allocators goes nowhere.
[[noreturn]] void run_tests(heap_kind const& kind, std::vector<test> const& tests, std::size_t first,
                            options const& with, int pipe) {
  if (int const nowhere = ::open("/dev/null", O_WRONLY); nowhere >= 0) ::dup2(nowhere, STDOUT_FILENO);
  for (auto i = first; i < tests.size(); ++i) {
    try {
      write_line(pipe, to_line(measure(kind, tests[i], with)));
    } catch (std::exception const& error) {
      result failed;
      failed.note = error.what();
      write_line(pipe, to_line(failed));
      std::_Exit(2); // an error of a kernel stays in the context
    }
  }
  std::_Exit(0);
}

class child {
public:
  child(heap_kind const& kind, std::vector<test> const& tests, std::size_t first, options const& with) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error(std::string{"pipe: "} + std::strerror(errno));
    std::fflush(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      ::close(ends[0]);
      run_tests(kind, tests, first, with, ends[1]);
    }
    ::close(ends[1]);
    lines_ = ends[0];
    if (process_ < 0) throw std::runtime_error(std::string{"fork: "} + std::strerror(errno));
  }
  child(child const&) = delete;
  child& operator=(child const&) = delete;
  ~child() {
    ::close(lines_);
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

  /// Returns the next result, or what happened instead.
  result next(double patience) {
    auto const end = clock_type::now() + std::chrono::duration<double>(patience);
    for (;;) {
      if (auto const length = text_.find('\n'); length != std::string::npos) {
        auto const line = text_.substr(0, length);
        text_.erase(0, length + 1);
        return from_line(line);
      }
      auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(end - clock_type::now()).count();
      pollfd ready{lines_, POLLIN, 0};
      if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) == 0) {
        result hung;
        hung.note = "no end after " + std::to_string(static_cast<int>(patience)) + " s";
        return hung;
      }
      char part[4096];
      auto const count = ::read(lines_, part, sizeof part);
      if (count <= 0) {
        result dead;
        dead.note = end_of_process();
        return dead;
      }
      text_.append(part, static_cast<std::size_t>(count));
    }
  }

private:
  std::string end_of_process() {
    int status = 0;
    ::waitpid(std::exchange(process_, -1), &status, 0);
    if (WIFSIGNALED(status)) return std::string{"the process died: "} + ::strsignal(WTERMSIG(status));
    return "the process ended with status " + std::to_string(WEXITSTATUS(status));
  }

  pid_t process_ = -1;
  int lines_ = -1;
  std::string text_;
};

} // namespace

std::vector<result> run_apart(heap_kind const& kind, std::vector<test> const& tests, options const& with,
                              std::function<void(test const&, result const&)> const& done) {
  std::vector<result> results;
  auto const end = clock_type::now() + std::chrono::duration<double>(with.budget);
  for (unsigned processes = 0; results.size() < tests.size() && processes < 3; ++processes) {
    child other{kind, tests, results.size(), with};
    while (results.size() < tests.size() && clock_type::now() < end) {
      auto const& added = results.emplace_back(other.next(with.patience));
      done(tests[results.size() - 1], added);
      if (!added.note.empty() && added.note != not_possible) break;
    }
    if (clock_type::now() >= end) break;
  }
  result left_out;
  left_out.note = not_run;
  results.resize(tests.size(), left_out);
  return results;
}

} // namespace heaps
