// The files that a page contains; the build writes them into the program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace report_assets {

extern std::string_view const d3;
extern std::string_view const d3_license;
extern std::string_view const script;
extern std::string_view const views;
extern std::string_view const style;

} // namespace report_assets
