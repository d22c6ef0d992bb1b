// Allocation traces: the layout of binary traces, a reader and a writer.
// SPDX-License-Identifier: Apache-2.0
module;
#include <iosfwd>
#include <string>
#include <string_view>
export module gpumem:trace;
import :memory_watcher;
import :std;

/// A binary trace is a header and then rows. Each of them has 40 bytes, and every number is little-endian. The rows of
/// one thread are in the order of its calls. A stable sort by time puts the rows of all threads in the order of the
/// calls.
///
/// In version 1 the time of a row is in nanoseconds, and there are rows of allocations, frees and failures alone. In
/// version 2 the time is in ticks. Clock rows have the ticks and the nanoseconds of one moment. The reader computes the
/// time between two of them, and after the last one, in proportion to the ticks. A text row has the number of a label
/// in `label`, and the length of its text in `bytes`. After it follow the text, and zeros up to a multiple of 40 bytes.
/// It stands before the rows that have the number.
namespace gpumem::detail {

inline constexpr std::array<char, 8> binary_trace_magic{'\x89', 'g', 'p', 'u', 'm', 'e', 'm', '\n'};
inline constexpr std::uint32_t binary_trace_version = 2;

struct binary_trace_header {
  std::array<char, 8> magic = binary_trace_magic;
  std::uint32_t version = binary_trace_version;
  std::uint32_t unused_number = 0;
  std::uint64_t microseconds = 0; // from the midnight before the recording to the time 0 of the rows
  std::uint64_t ticks = 0;        // at that time
  std::uint64_t unused = 0;
};

struct binary_trace_row {
  std::uint64_t ticks;
  std::uint64_t pointer; // in a clock row: nanoseconds since the time in the header
  std::uint64_t bytes;
  std::uint64_t stream; // in a row of a move: the address of the pages before
  std::uint32_t thread;
  std::uint8_t action;     // a trace_action, text_row or clock_row
  std::uint8_t served = 0; // a served_by
  std::uint16_t label = 0; // the number of a text in this trace

  static constexpr std::uint8_t text_row = 254;
  static constexpr std::uint8_t clock_row = 255;
};

static_assert(sizeof(binary_trace_header) == sizeof(binary_trace_row));

/// Returns the bytes of a header or a row as a file holds them.
template <class Part> std::string_view bytes_in_trace(Part const& part) noexcept {
  static_assert(sizeof part == sizeof(binary_trace_row));
  return {reinterpret_cast<char const*>(&part), sizeof part};
}

} // namespace gpumem::detail

namespace gpumem::extend {

/// The kind of a row of a trace. Only binary logs have the rows after allocate_failure.
export enum class trace_action : std::uint8_t {
  allocate,
  free,
  allocate_failure, ///< an attempt has failed; if the request may wait, further rows tell how it goes on
  map,              ///< the pool has got the memory at `pointer` from the driver or from its upstream
  unmap,            ///< the pool gives the memory at `pointer` back
  move,             ///< the pool has moved pages from the address `stream` to `pointer`
  wait,             ///< a block of a request begins to wait; an allocation served by a turn, or a refusal, ends that
  refusal,          ///< a block of a request that waited ends without memory
  label,            ///< from now on the live block at `pointer` has the label `label`
};

/// One row. Pointer and stream are recorded numbers and must not be dereferenced. In the log format a pointer of 0 is
/// `(nil)`, and a stream of 0 is `0`. Rows of memory that the pool gets or gives back have no stream.
export struct trace_record {
  std::uint64_t thread = 0;                     ///< number of the calling thread
  std::uint64_t microseconds = 0;               ///< since the midnight before the recording
  trace_action action = trace_action::allocate; ///< kind of the row
  std::uint64_t pointer = 0;                    ///< address of the block; 0 for a failed allocation
  std::uint64_t bytes = 0;                      ///< passed to the call
  std::uint64_t stream = 0;                     ///< passed to the call
  served_by served = served_by::unknown;        ///< how an allocation was served; binary logs of version 2 say it
  /// In a row of an allocation or of a label: the number of the block's label, whose text trace_reader::label_text()
  /// returns; 0: none. Binary logs of version 2 have labels.
  std::uint32_t label = 0;

  bool operator==(trace_record const&) const = default;
};

/// The first line of every trace in the log format, without its line end.
export inline constexpr std::string_view trace_header = "Thread,Time,Action,Pointer,Size,Stream";

/// A trace that cannot be read: `what()` is `file:line: reason`. Line 0 means the file as a whole. In a binary trace
/// the line is the number of the row in the file; the header is 1.
export class trace_error : public std::runtime_error {
public:
  /// Makes the text of what().
  trace_error(std::string file, std::size_t line, std::string reason);

  /// Returns the name of the file.
  inline std::string const& file() const noexcept { return file_; }
  /// Returns the number of the line, from 1; 0 for the file as a whole.
  inline std::size_t line() const noexcept { return line_; }
  /// Returns the reason, which is the text of what() after the line number.
  inline std::string const& reason() const noexcept { return reason_; }

private:
  std::string file_;
  std::size_t line_;
  std::string reason_;
};

/// A formatted row with its line end. The text lies inside the object: no heap memory.
export class trace_row {
public:
  /// Returns the text, which lives as long as the object.
  inline std::string_view text() const noexcept { return {text_.data(), size_}; }

private:
  friend trace_row format_row(trace_record const& record) noexcept;

  std::array<char, 128> text_; // the longest row, every number at its maximum, has 121 characters
  std::size_t size_ = 0;
};

/// Returns the formatted row of `record`; an empty row if RMM's format has no such action. Allocates nothing. Any
/// thread.
export trace_row format_row(trace_record const& record) noexcept;

/// Reads a whole trace from memory, row by row; its first bytes tell the format. Throws `trace_error` for any line that
/// is not a row of the format, also for a last line without a line end, as in a file that was cut short. Lines may end
/// in LF or CR LF.
///
/// next() returns the rows of a binary trace in the order of their times, so that an allocation comes after an earlier
/// free of its address. If a row is malformed or cut short, next() returns the rows before it in the file, and then
/// throws `trace_error`. It reads versions 1 and 2 of the binary form.
export class trace_reader {
public:
  /// Reads `text`; `name` is the file name in errors. The constructor checks the header.
  explicit trace_reader(std::string text, std::string name = "trace");
  /// Reads bytes that must outlive the reader, such as those of a mapped file. It keeps 4 bytes for each row of a
  /// binary trace.
  explicit trace_reader(std::span<std::byte const> bytes, std::string name = "trace");
  /// Reads the rest of `input` into memory, and checks the header.
  explicit trace_reader(std::istream& input, std::string name = "trace");

  /// Fills `record` with the next row. Returns false at the end. After an error the reader is at its end.
  bool next(trace_record& record);
  /// Goes back to the first row.
  inline void rewind() noexcept {
    position_ = begin_;
    line_ = 1;
    passed_ = 0;
  }
  /// Returns all remaining rows.
  std::vector<trace_record> read_all();
  /// Returns the text of a label that a row has; an empty text for 0, and for numbers that no row has.
  inline std::string_view label_text(std::uint32_t number) const noexcept {
    return number < labels_.size() ? std::string_view{labels_[number]} : std::string_view{};
  }
  /// Returns the line number of the row that next() returned last; the header is line 1. In a binary trace it is the
  /// number of the row in the file.
  inline std::size_t line() const noexcept { return line_; }
  /// Returns the name of the file that errors show.
  inline std::string const& name() const noexcept { return name_; }

private:
  std::string_view next_line();
  void read_header();
  void read_binary_header();
  bool read_label_text();
  bool next_binary(trace_record& record);
  std::uint64_t nanoseconds_at(std::uint64_t ticks) noexcept;
  [[noreturn]] void fail(std::string reason);

  std::shared_ptr<std::string const> owned_; // shared, so that `text_` stays where it is when the reader moves
  std::string_view text_;
  std::string name_;
  std::size_t begin_ = 0;    // the first position
  std::size_t position_ = 0; // of the next line in the text; in a binary trace: of the next row in `by_time_`
  std::size_t line_ = 0;
  bool binary_ = false;
  std::uint64_t microseconds_ = 0;     // from midnight to the time 0 of a binary trace
  std::uint32_t version_ = 0;          // of a binary trace
  std::size_t read_end_ = 0;           // of a binary trace: where its well-formed rows end in the text
  std::vector<std::uint32_t> by_time_; // of a binary trace: which parts of the text are rows that next() returns
  std::vector<std::string> labels_;    // by number
  struct moment {
    std::uint64_t ticks, nanoseconds;
  };
  std::vector<moment> clock_; // of a binary trace, by ticks
  std::size_t passed_ = 0;    // the moment in `clock_` that is the last one before the next row
};

/// Writes a trace to a std::ostream: the header on construction, then one row for each write(). A failed write sets the
/// error state of the std::ostream. Not thread-safe.
export class trace_writer {
public:
  /// Writes the header. The std::ostream must outlive the writer.
  explicit trace_writer(std::ostream& output);

  /// Writes a row. Does nothing if RMM's format has no such action.
  void write(trace_record const& record);
  /// Flushes the std::ostream.
  void flush();

private:
  std::ostream* output_;
};

} // namespace gpumem::extend
