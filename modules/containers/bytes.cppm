// Sizes in bytes: conversions from and to text, literals, and a percentage of a device's free memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <string>
#include <string_view>
export module gpumem:bytes;
import :device;
import :std;

namespace gpumem {

namespace detail {
// Multiplies the literal's number by its unit. On overflow it throws, which is not a constant expression, so the
// literal does not compile.
consteval std::size_t scale_bytes(unsigned long long count, std::size_t unit) {
  if (count > std::numeric_limits<std::size_t>::max() / unit) {
    throw std::overflow_error{"gpumem: the value exceeds SIZE_MAX"};
  }
  return static_cast<std::size_t>(count) * unit;
}
} // namespace detail

/// Returns the number of bytes that the text names: "4096", "4096B", "1.5MiB", "1 GiB", "2GB". Units with an i are
/// binary, others decimal, up to EiB and EB, in upper or lower case. The result is rounded to whole bytes.
///
/// Throws std::invalid_argument with the text and the reason. The reasons are: no number, a negative number, an unknown
/// unit, a fraction with unit B or without unit, a result that does not fit into 64 bits. Any thread.
export std::size_t parse_bytes(std::string_view text);

/// Returns the size as text, with two decimals, in the largest binary unit that is not larger than the size. Bytes have
/// no decimals. Examples: "7.52 GiB", "512 B". Any thread.
export std::string format_bytes(std::size_t bytes);

/// Returns `percent` % of the memory that is free on the device now, in bytes, rounded down to a multiple of
/// 256. Throws std::invalid_argument unless `percent` is 0 to 100, and cuda_error. Any thread.
export std::size_t percent_of_free_device_memory(int percent, device home = device::current());

/// Literals for sizes in bytes: 1_KiB, 2_MiB, 3_GiB, 4_TiB. A literal that exceeds SIZE_MAX does not compile.
export inline namespace literals {
  /// Multiplies by 1024.
  consteval std::size_t operator""_KiB(unsigned long long count) {
    return detail::scale_bytes(count, std::size_t{1} << 10);
  }
  /// Multiplies by 1024 * 1024.
  consteval std::size_t operator""_MiB(unsigned long long count) {
    return detail::scale_bytes(count, std::size_t{1} << 20);
  }
  /// Multiplies by the third power of 1024.
  consteval std::size_t operator""_GiB(unsigned long long count) {
    return detail::scale_bytes(count, std::size_t{1} << 30);
  }
  /// Multiplies by the fourth power of 1024.
  consteval std::size_t operator""_TiB(unsigned long long count) {
    return detail::scale_bytes(count, std::size_t{1} << 40);
  }
} // namespace literals

} // namespace gpumem
