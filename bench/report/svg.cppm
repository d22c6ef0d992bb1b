// The picture of a report, for a README.
// SPDX-License-Identifier: Apache-2.0
module;
#include <span>
#include <string>
export module report:svg;
import :summary;

namespace report {

/// Returns live and reserved bytes, and fragmentation, over time: one panel for each recording. It is the same each
/// time.
export std::string format_svg(std::span<summary const> all);

} // namespace report
