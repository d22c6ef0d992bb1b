// Writes snapshots as JSON.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <gpumem/version.h>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
module gpumem.snapshot;

namespace gpumem {
namespace {

// Writes an object or a list of JSON; the destructor writes its end.
class json_group {
public:
  json_group(std::ostream& stream, std::string_view ends) : stream_{stream}, end_{ends[1]} { stream_ << ends[0]; }
  json_group(json_group const&) = delete;
  json_group& operator=(json_group const&) = delete;
  ~json_group() { stream_ << end_; }

  // Begins the next item of a list.
  std::ostream& item() { return stream_ << std::exchange(separator_, ","); }
  // Writes a member of an object, or its name alone.
  std::ostream& name(std::string_view text) { return item() << '"' << text << "\":"; }
  // Not by the operator of the stream, whose locale may group digits.
  void member(std::string_view text, std::integral auto value) { name(text) << std::to_string(value); }
  void member(std::string_view text, bool value) { name(text) << (value ? "true" : "false"); }
  void member(std::string_view text, void const* address) { member(text, reinterpret_cast<std::uintptr_t>(address)); }
  void member(std::string_view text, std::string const& value);

private:
  std::ostream& stream_;
  char const end_;
  char const* separator_ = "";
};

// Bytes beyond ASCII are taken as UTF-8.
void json_group::member(std::string_view text, std::string const& value) {
  auto& stream = name(text) << '"';
  constexpr std::string_view digits = "0123456789abcdef";
  for (unsigned char const c : value) {
    if (c == '"' || c == '\\') {
      stream << '\\' << c;
    } else if (c < 0x20) {
      stream << "\\u00" << digits[c / 16] << digits[c % 16];
    } else {
      stream << c;
    }
  }
  stream << '"';
}

using count = std::uint64_t statistics::*;
constexpr std::array<std::pair<char const*, count>, 33> counts{
    {{"live", &statistics::live},
     {"allocated", &statistics::allocated},
     {"cached", &statistics::cached},
     {"reserved", &statistics::reserved},
     {"largest_free", &statistics::largest_free},
     {"limit", &statistics::limit},
     {"largest_block", &statistics::largest_block},
     {"peak_live", &statistics::peak_live},
     {"peak_reserved", &statistics::peak_reserved},
     {"reserved_in_all", &statistics::reserved_in_all},
     {"allocations", &statistics::allocations},
     {"frees", &statistics::frees},
     {"failures", &statistics::failures},
     {"upstream_allocations", &statistics::upstream_allocations},
     {"upstream_frees", &statistics::upstream_frees},
     {"coalesces", &statistics::coalesces},
     {"coalesces_refused", &statistics::coalesces_refused},
     {"reuse_same_stream", &statistics::reuse_same_stream},
     {"reuse_thread_cache", &statistics::reuse_thread_cache},
     {"reuse_ordered", &statistics::reuse_ordered},
     {"reuse_completed", &statistics::reuse_completed},
     {"reuse_waited", &statistics::reuse_waited},
     {"reuse_after_sync", &statistics::reuse_after_sync},
     {"free", &statistics::free},
     {"free_ranges", &statistics::free_ranges},
     {"free_in_use", &statistics::free_in_use},
     {"in_use_streams", &statistics::in_use_streams},
     {"quarantined", &statistics::quarantined},
     {"waiting", &statistics::waiting},
     {"waiting_bytes", &statistics::waiting_bytes},
     {"oldest_wait_ns", &statistics::oldest_wait_ns},
     {"shards", &statistics::shards},
     {"lent", &statistics::lent}}};
static_assert(sizeof(statistics) == counts.size() * sizeof(std::uint64_t), "a field of the statistics is missing");

constexpr std::array<char const*, 4> state_names{"live", "free", "cached", "pending"};

void write_block(memory_snapshot const& snapshot, snapshot_block const& copy, std::ostream& stream) {
  json_group block{stream, "{}"};
  block.member("address", copy.base);
  block.member("bytes", copy.bytes);
  block.member("state", std::string{state_names[static_cast<std::size_t>(copy.state)]});
  if (copy.state == memory_state::free) return block.member("in_use", copy.in_use);
  block.member("stream", copy.stream);
  block.member("age", copy.age);
  if (copy.state != memory_state::cached) block.member("requested", copy.requested);
  if (copy.label) block.member("label", snapshot.labels[copy.label]);
}

// Writes a list, one item a line. `write(item)` writes an item.
template <class Items, class Write>
void write_list(json_group& owner, std::string_view name, Items const& items, Write write) {
  json_group list{owner.name(name), "[]"};
  for (auto const& each : items) {
    list.item() << '\n';
    write(each);
  }
}

} // namespace

void write_json(memory_snapshot const& snapshot, std::ostream& stream) {
  {
    json_group object{stream, "{}"};
    object.member("format", std::string{"gpumem snapshot"});
    object.member("version", 1);
    object.member("pool", snapshot.name);
    object.member("device", snapshot.device);
    object.member("pieces", snapshot.pieces);
    object.member("calls_meanwhile", snapshot.calls_meanwhile);
    {
      json_group figures{object.name("statistics"), "{}"};
      for (auto const& [name, member] : counts) figures.member(name, snapshot.statistics.*member);
    }
    {
      json_group regions{object.name("regions"), "[]"};
      for (auto at = snapshot.blocks.begin(); at != snapshot.blocks.end();) {
        regions.item() << '\n';
        json_group region{stream, "{}"};
        region.member("address", at->base);
        json_group blocks{region.name("blocks"), "[]"};
        do {
          blocks.item() << '\n';
          write_block(snapshot, *at, stream);
        } while (++at != snapshot.blocks.end() && !at->begins_region);
      }
    }
    write_list(object, "pages", snapshot.pages, [&](snapshot_page const& copy) {
      json_group page{stream, "{}"};
      page.member("address", copy.base);
      page.member("bytes", copy.bytes);
      page.member("pinned", copy.pinned);
    });
    write_list(object, "thread_caches", snapshot.caches, [&](snapshot_cache const& copy) {
      json_group cache{stream, "{}"};
      cache.member("thread", copy.number);
      cache.member("allocations", copy.allocations);
      cache.member("frees", copy.frees);
      cache.member("small_bytes", copy.small);
      cache.member("medium_bytes", copy.medium);
      cache.member("large_bytes", copy.large);
    });
    write_list(object, "waiting", snapshot.waiting, [&](snapshot_request const& copy) {
      json_group request{stream, "{}"};
      request.member("bytes", copy.bytes);
      request.member("stream", copy.stream);
      request.member("priority", copy.priority);
      request.member("waited_ns", copy.waited_ns);
      if (!copy.holder.empty()) request.member("scope", copy.holder);
    });
  }
  stream << '\n';
}

} // namespace gpumem
