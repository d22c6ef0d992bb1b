// The page of a report: one HTML file that loads nothing.
// SPDX-License-Identifier: Apache-2.0
module;
#include <span>
#include <string>
export module report:page;
import :summary;

namespace report {

/// Returns the page. It is the same each time.
export std::string format_page(std::span<summary const> all);

} // namespace report
