// Trace files, plain or gzip.
// SPDX-License-Identifier: Apache-2.0
module;

#include <string>

export module replay:trace_file;

namespace replay {

/// Returns the whole trace of a file, unpacked if it is gzip. Throws gpumem::extend::trace_error with the file and the
/// last line that could be read. It does so for a file that is missing, unreadable, damaged or cut short.
export std::string read_trace_file(std::string const& path);

/// Returns the rows of a trace as text in RMM's log format. Throws gpumem::extend::trace_error with `name`.
export std::string to_csv(std::string text, std::string const& name);

/// Returns "gpt_train" for "traces/gpt_train.csv.gz" and "gpt_train.gpumemlog".
export std::string trace_name(std::string const& path);

} // namespace replay
