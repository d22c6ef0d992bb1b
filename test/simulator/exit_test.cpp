// The end of a program on the simulated device: it fails if findings are left.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <cstdlib>

namespace {

// Each program is a process of its own.
class program_end : public simulated_device {
protected:
  void SetUp() override {
    simulated_device::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  /// Makes a finding: the second use of a destroyed stream.
  void use_a_dead_stream() {
    CUstream const stream = new_stream();
    cu().stream_destroy(stream);
    cu().stream_query(stream);
  }
};

TEST_F(program_end, findings_that_were_not_taken_make_it_fail) {
  EXPECT_EXIT(
      {
        use_a_dead_stream();
        std::exit(EXIT_SUCCESS);
      },
      testing::ExitedWithCode(EXIT_FAILURE), "the program fails, since findings were not taken: 1\n  .+\n");
}

TEST_F(program_end, findings_that_were_read_but_not_taken_make_it_fail) {
  EXPECT_EXIT(
      {
        use_a_dead_stream();
        std::exit(simulator::report().findings.size() == 1 ? EXIT_SUCCESS : 2);
      },
      testing::ExitedWithCode(EXIT_FAILURE), "findings were not taken: 1");
}

TEST_F(program_end, findings_that_were_taken_let_it_succeed) {
  EXPECT_EXIT(
      {
        use_a_dead_stream();
        std::exit(simulator::take_findings().size() == 1 ? EXIT_SUCCESS : 2);
      },
      testing::ExitedWithCode(EXIT_SUCCESS), "^$");
}

TEST_F(program_end, other_failure_keeps_its_code) {
  EXPECT_EXIT(
      {
        use_a_dead_stream();
        std::exit(7);
      },
      testing::ExitedWithCode(7), "findings were not taken: 1");
}

} // namespace
