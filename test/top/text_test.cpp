// The table and the text for Prometheus.
// SPDX-License-Identifier: Apache-2.0
#include "../../bench/top/text.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

top::process one_process() {
  top::row pool{};
  std::memcpy(pool.name, "a\"b\\c", 6);
  pool.device = -1;
  pool.live = 1 << 20;
  pool.moves = 5;
  return {.number = 42, .id = "42", .program = "app", .pools = 3, .rows = {pool}};
}

TEST(table, has_a_row_for_each_pool) {
  std::vector const all{one_process()};
  EXPECT_EQ(top::format_table(all),
            "process  program  pool   device      live  reserved  limit  waiting  moves  misses\n"
            "42       app      a\"b\\c       -  1.00 MiB         -      -        0      5       0\n"
            "2 more pools have no rows.\n");
}

TEST(table, says_what_is_missing) {
  EXPECT_EQ(top::format_table({}), "No process publishes pools: it needs GPUMEM_MONITOR=1.\n");
}

TEST(prometheus, quotes_names) {
  std::vector const all{one_process()};
  std::string const text = top::format_prometheus(all);
  EXPECT_NE(text.find("# HELP gpumem_pool_live_bytes Requested bytes of blocks that are not freed yet.\n"
                      "# TYPE gpumem_pool_live_bytes gauge\n"
                      "gpumem_pool_live_bytes{process=\"42\",program=\"app\",pool=\"a\\\"b\\\\c\",number=\"0\","
                      "device=\"-1\"} 1048576\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("# TYPE gpumem_pool_moves_total counter\n"), std::string::npos);
}

TEST(prometheus, processes_of_one_number_have_series_of_their_own) {
  std::vector all{one_process(), one_process()};
  all[1].id = "42.1";
  std::istringstream text{top::format_prometheus(all)};
  std::set<std::string> series;
  for (std::string line; std::getline(text, line);)
    EXPECT_TRUE(series.insert(line.substr(0, line.rfind(' '))).second) << line;
}

} // namespace
