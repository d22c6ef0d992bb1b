// A trace on disk, plain or gzip.
// SPDX-License-Identifier: Apache-2.0
module;

#include <string>

export module replay:trace_file;

namespace replay {

/// The whole text of a file, unpacked if it is gzip. Throws gpumem::extend::trace_error with the file, and the line
/// up to which it could be read, for a file that is missing, unreadable, damaged or cut short.
export std::string read_trace_file(std::string const& path);

/// "gpt_train" for "traces/gpt_train.csv.gz".
export std::string trace_name(std::string const& path);

} // namespace replay
