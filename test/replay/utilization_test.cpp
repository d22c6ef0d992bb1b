// The utilization of pools that move pages without a bound, on recorded traces of one stream and the simulated device.
// Each figure is the same in every run.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>

namespace {

struct expectation {
  char const* trace;
  double least; // minimum utilization: .005 less than measured when this was written

  friend void PrintTo(expectation const& one, std::ostream* out) { *out << one.trace; }
};

class utilization : public testing::TestWithParam<expectation> {
protected:
  utilization() {
    folder_ = std::filesystem::temp_directory_path() / ("gpumem_utilization_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~utilization() override { std::filesystem::remove_all(folder_); }

  nlohmann::json replay(std::string const& trace, int passes) const {
    auto const json = (folder_ / "results.json").string();
    auto const command = "'" GPUMEM_REPLAY_PROGRAM "' '" GPUMEM_TRACES "/" + trace +
                         ".csv.gz' --resource pool_effort_1 --device simulated --repeat " + std::to_string(passes) +
                         " --json '" + json + "' >/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    std::ifstream in{json};
    return nlohmann::json::parse(in).at(0);
  }

  std::filesystem::path folder_;
};

TEST_P(utilization, recorded_traces_keep_their_utilization) {
  auto const statistics = replay(GetParam().trace, 2);
  EXPECT_EQ(statistics["failures"], 0);
  EXPECT_EQ(statistics["streams_per_thread"], 1);
  double const found = statistics["utilization"];
  EXPECT_GE(found, GetParam().least) << GetParam().trace << ": " << found;
}

INSTANTIATE_TEST_SUITE_P(traces, utilization,
                         testing::Values(expectation{"conv3d_seg", .950}, expectation{"gnn_sample", .970},
                                         expectation{"gpt_train", .960}, expectation{"llama_checkpoint", .960},
                                         expectation{"moe_train", .958}, expectation{"recsys", .967},
                                         expectation{"resnet_train", .970}, expectation{"rlhf", .965},
                                         expectation{"t5_translate", .961}, expectation{"vit_train_eval", .943}),
                         [](auto const& info) { return std::string{info.param.trace}; });

// Growth after the first passes would raise the peak.
TEST_F(utilization, warm_pool_does_not_grow_in_a_million_operations) {
  auto const reserved = [&](int passes) { return replay("gpt_train", passes)["peak_reserved_bytes"]; };
  EXPECT_EQ(reserved(3 + 14), reserved(3)) << "in passes of 72,457 operations";
}

} // namespace
