// CLI11.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

int main() {
  CLI::App app{"probe"};
  return app.get_description().empty();
}
