// A fixture that runs gpumem-replay as users run it, and traces for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace replay_test {

inline std::string const header = "Thread,Time,Action,Pointer,Size,Stream\n";

inline std::string row(std::string const& action, std::string const& pointer, std::string const& bytes,
                       std::string const& stream = "0") {
  return "1,00:00:00.000000," + action + "," + pointer + "," + bytes + "," + stream + "\n";
}

// Two streams, one free on the other stream, one block left live; at most 3 MiB live.
inline std::string const small_trace = header + row("allocate", "0xa00", "1048576", "0x1") +
                                       row("allocate", "0xb00", "2097152", "0x2") +
                                       row("free", "0xa00", "1048576", "0x2") + row("allocate", "0xa00", "512", "0x1") +
                                       row("free", "0xb00", "2097152", "0x2");

struct outcome {
  int code = 0;
  std::string output;
  std::string errors;
};

class program : public testing::Test {
protected:
  program() {
    folder_ = std::filesystem::temp_directory_path() / ("gpumem_replay_" + std::to_string(getpid()) + "_" +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  ~program() override { std::filesystem::remove_all(folder_); }

  std::string path(std::string const& name) const { return (folder_ / name).string(); }

  std::string file(std::string const& name, std::string const& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  static std::string read(std::string const& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string gzip_file(std::string const& name, std::string const& text) const {
    gzFile const out = gzopen(path(name).c_str(), "wb");
    gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
    gzclose(out);
    return path(name);
  }

  outcome run(std::vector<std::string> const& arguments, std::string const& program = GPUMEM_REPLAY_PROGRAM) const {
    std::string command = "'" + program + "'";
    for (std::string const& argument : arguments) command += " '" + argument + "'";
    int const status = std::system((command + " >" + path("out") + " 2>" + path("err") + " </dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path("out")), read(path("err"))};
  }

  // Returns the JSON of a run that must succeed.
  nlohmann::json statistics(std::vector<std::string> arguments) const {
    std::string const json = path("results.json");
    arguments.insert(arguments.end(), {"--device", "simulated", "--json", json});
    outcome const done = run(arguments);
    if (done.code != 0) throw std::runtime_error(done.errors);
    return nlohmann::json::parse(read(json));
  }

  // Expects that a run fails with this message and prints no results.
  void expect_refusal(std::vector<std::string> arguments, std::string const& message) const {
    std::string const json = path("refused.json");
    arguments.insert(arguments.end(), {"--device", "simulated", "--json", json});
    outcome const done = run(arguments);
    EXPECT_NE(done.code, 0);
    EXPECT_EQ(done.output, "");
    EXPECT_NE(done.errors.find(message), std::string::npos) << done.errors;
    EXPECT_FALSE(std::filesystem::exists(json));
  }

  std::filesystem::path folder_;
};

} // namespace replay_test
