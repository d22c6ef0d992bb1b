// nlohmann-json.
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

int main() { return nlohmann::json{{"answer", 42}}.empty(); }
