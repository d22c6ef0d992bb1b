// Reads the snapshots that gpumem writes as JSON.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
module report:json_snapshot.impl;
import gpumem;
import replay;
import :event_list;
import :events;
import :snapshots;

namespace report::detail {

namespace {

using nlohmann::json;

json const& member_of(json const& owner, char const* name) {
  if (!owner.is_object()) throw std::invalid_argument("no object");
  auto const found = owner.find(name);
  if (found == owner.end()) throw std::invalid_argument(std::string{name} + " is missing");
  return *found;
}

std::uint64_t number_of(json const& owner, char const* name) {
  json const& value = member_of(owner, name);
  if (!value.is_number_unsigned()) throw std::invalid_argument(std::string{name} + " is no number from 0");
  return value.get<std::uint64_t>();
}

std::string text_of(json const& owner, char const* name) {
  json const& value = member_of(owner, name);
  if (!value.is_string()) throw std::invalid_argument(std::string{name} + " is no text");
  return value.get<std::string>();
}

std::string text_if_any(json const& owner, char const* name) {
  return owner.contains(name) ? text_of(owner, name) : std::string{};
}

json const& list_of(json const& owner, char const* name) {
  json const& value = member_of(owner, name);
  if (!value.is_array()) throw std::invalid_argument(std::string{name} + " is no list");
  return value;
}

json parsed(std::string_view text, std::string const& file) {
  try {
    return json::parse(text);
  } catch (json::parse_error const& error) {
    auto const end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    auto const line = static_cast<std::size_t>(std::count(text.begin(), end, '\n')) + 1;
    bool const cut = error.byte > text.size();
    throw gpumem::extend::trace_error(file, line, cut ? "cut short" : "not JSON");
  } catch (json::exception const&) { // JSON, whose line is unknown
    throw gpumem::extend::trace_error(file, 0, "a number is too large");
  }
}

class snapshot_builder {
public:
  explicit snapshot_builder(recording& target) : facts_{target.snapshot.emplace()}, rows_{target} {}

  void build(json const& whole) {
    if (text_if_any(whole, "format") != "gpumem snapshot") throw std::invalid_argument("no snapshot of gpumem");
    if (auto const version = number_of(whole, "version"); version != 1)
      throw std::invalid_argument("version " + std::to_string(version) + " of the format is unknown");
    facts_.pool = printable(text_of(whole, "pool"));
    facts_.on_device = member_of(whole, "device") != -1;
    if (facts_.on_device) facts_.device = number_of(whole, "device");
    facts_.calls_meanwhile = number_of(whole, "calls_meanwhile");
    each_item(list_of(whole, "regions"), "regions", [&](json const& region) { add_region(region); });
    each_item(list_of(whole, "pages"), "pages", [&](json const& page) {
      ++facts_.pages;
      facts_.pinned_pages += member_of(page, "pinned") == true;
    });
    each_item(list_of(whole, "thread_caches"), "thread_caches", [&](json const& cache) {
      facts_.caches.push_back(
          {number_of(cache, "thread"), number_of(cache, "allocations"), number_of(cache, "frees"),
           number_of(cache, "small_bytes") + number_of(cache, "medium_bytes") + number_of(cache, "large_bytes")});
    });
    each_item(list_of(whole, "waiting"), "waiting", [&](json const& request) {
      facts_.waiting.push_back({number_of(request, "bytes"), number_of(request, "stream"),
                                number_of(request, "waited_ns"), printable(text_if_any(request, "scope"))});
    });
  }

private:
  void add_region(json const& region) {
    ++facts_.regions;
    auto const begin = number_of(region, "address");
    auto end = begin;
    json const& blocks = list_of(region, "blocks");
    each_item(blocks, "blocks", [&](json const& block) {
      if (number_of(block, "address") != end) throw std::invalid_argument("does not begin where the one before ends");
      if (!is_possible(end, number_of(block, "bytes")))
        throw std::invalid_argument("memory at addresses that no memory has");
      end += number_of(block, "bytes");
    });
    rows_.add({.action = trace_action::map, .pointer = begin, .bytes = end - begin});
    each_item(blocks, "blocks", [&](json const& block) { add_block(block); });
  }

  void add_block(json const& block) {
    auto const state = text_of(block, "state");
    auto const bytes = number_of(block, "bytes");
    if (state == "live") {
      auto const requested = number_of(block, "requested");
      if (requested > bytes) throw std::invalid_argument("requested is larger than bytes");
      rows_.add({.pointer = number_of(block, "address"), .bytes = requested, .stream = number_of(block, "stream")},
                text_if_any(block, "label"));
    } else if (state == "cached") {
      ++facts_.cached_blocks;
      facts_.cached_bytes += bytes;
    } else if (state == "pending") {
      ++facts_.pending_blocks;
      facts_.pending_bytes += bytes;
    } else if (state != "free") {
      throw std::invalid_argument("the state '" + state.substr(0, 40) + "' is unknown");
    }
  }

  snapshot_facts& facts_;
  event_list rows_;
};

} // namespace

recording read_json_snapshot(std::string_view text, std::string const& file) {
  recording made;
  made.name = replay::trace_name(file);
  made.file = file;
  made.memory = memory_source::snapshot;
  made.timed = made.regions_join = false;
  json const whole = parsed(text, file);
  try {
    snapshot_builder{made}.build(whole);
  } catch (std::invalid_argument const& error) { throw std::runtime_error(file + ": " + error.what()); }
  made.threads.clear();
  made.initial = made.events.size();
  return made;
}

} // namespace report::detail
