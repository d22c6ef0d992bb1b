// The pages on which processes publish their pools.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/monitor_page.hpp>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace top {

using row = gpumem::detail::monitor_row;

/// The pools that one process has published.
struct process {
  std::uint64_t number = 0;
  std::string id;          ///< its number, and that of the page, as in "42.1", if others have pages of the same number
  std::string program;     ///< the begin of its name, in printable characters; "-" if it is unknown
  std::uint64_t pools = 0; ///< may be more than the rows
  std::vector<row> rows;   ///< names end with a zero, and have printable characters only
};

/// Returns the processes of the user that have pages in the folder, in the order of their numbers. Trusts no page: a
/// file counts only if it belongs to the user, no other user may access it, and its size and first word are right. A
/// page that changes at each of many readings is left out. Removes pages of processes that have ended. Throws
/// std::system_error if the folder cannot be read.
std::vector<process> read_pages(std::string const& folder, uid_t user);

} // namespace top
