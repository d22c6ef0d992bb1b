// Reads and unpacks trace files.
// SPDX-License-Identifier: Apache-2.0
module;

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

module replay:trace_file.impl;

import gpumem;
import :trace_file;

namespace replay {

namespace detail {

[[noreturn]] void fail_in_file(std::string const& path, std::size_t line, std::string reason) {
  throw gpumem::extend::trace_error(path, line, std::move(reason));
}

std::string read_bytes(std::string const& path) {
  auto const reason = [] { return std::generic_category().message(errno); };
  struct closer {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, closer> const file{std::fopen(path.c_str(), "rb")};
  if (!file) fail_in_file(path, 0, "cannot be opened: " + reason());
  std::string bytes;
  std::array<char, 1 << 16> chunk;
  while (std::size_t const got = std::fread(chunk.data(), 1, chunk.size(), file.get())) bytes.append(chunk.data(), got);
  if (std::ferror(file.get()) != 0) fail_in_file(path, 0, "cannot be read: " + reason());
  return bytes;
}

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

// zlib's gzread ignores bytes after the last gzip member, so this uses inflate directly.
class gzip_reader {
public:
  gzip_reader(std::string const& path, std::string_view packed) : path_{path}, packed_{packed} {
    // 16 selects the gzip format with its checksum
    if (inflateInit2(&stream_, MAX_WBITS + 16) != Z_OK) fail_in_file(path_, 0, "cannot be unpacked: no memory");
  }
  gzip_reader(gzip_reader const&) = delete;
  gzip_reader& operator=(gzip_reader const&) = delete;
  ~gzip_reader() { inflateEnd(&stream_); }

  std::string unpack() {
    while (!packed_.empty()) {
      if (!is_gzip(packed_)) fail("something that is not gzip follows the gzip data");
      unpack_member();
    }
    return std::move(text_);
  }

private:
  void unpack_member() {
    inflateReset(&stream_);
    for (int state = Z_OK; state != Z_STREAM_END;) {
      if (packed_.empty()) fail("cut short: the gzip data ends here");
      auto const given = static_cast<uInt>(std::min<std::size_t>(packed_.size(), INT_MAX));
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed_.data()));
      stream_.avail_in = given;
      do {
        stream_.next_out = reinterpret_cast<Bytef*>(chunk_.data());
        stream_.avail_out = static_cast<uInt>(chunk_.size());
        state = inflate(&stream_, Z_NO_FLUSH);
        text_.append(chunk_.data(), chunk_.size() - stream_.avail_out);
      } while (state == Z_OK && stream_.avail_out == 0);
      if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR) {
        fail("damaged: " + std::string(stream_.msg != nullptr ? stream_.msg : "bad gzip data"));
      }
      packed_.remove_prefix(given - stream_.avail_in);
    }
  }

  [[noreturn]] void fail(std::string reason) const {
    if (text_.starts_with('\x89')) fail_in_file(path_, 0, std::move(reason)); // a binary trace has no lines
    auto const lines = static_cast<std::size_t>(std::count(text_.begin(), text_.end(), '\n'));
    fail_in_file(path_, lines + 1, std::move(reason));
  }

  std::string const& path_;
  std::string_view packed_;
  std::string text_;
  std::array<char, 1 << 16> chunk_;
  z_stream stream_{};
};

} // namespace detail

std::string read_trace_file(std::string const& path) {
  std::string bytes = detail::read_bytes(path);
  return detail::is_gzip(bytes) ? detail::gzip_reader{path, bytes}.unpack() : bytes;
}

std::string to_csv(std::string text, std::string const& name) {
  gpumem::extend::trace_reader reader{std::move(text), name};
  std::string rows{gpumem::extend::trace_header};
  rows += '\n';
  gpumem::extend::trace_record record;
  while (reader.next(record)) rows += gpumem::extend::format_row(record).text();
  return rows;
}

std::string trace_name(std::string const& path) {
  std::filesystem::path name = std::filesystem::path{path}.filename();
  if (name.extension() == ".gz") name.replace_extension();
  if (name.extension() == ".csv" || name.extension() == ".gpumemlog") name.replace_extension();
  return name.string();
}

} // namespace replay
