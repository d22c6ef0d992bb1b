// capture: streams join, nodes are added, and the order between streams is kept.
// SPDX-License-Identifier: Apache-2.0
#include "capture.hpp"

#include <algorithm>
#include <utility>

namespace simulated {

capture::member& capture::enter(const stream_ptr& on) {
  for (member& present : members)
    if (present.on == on) return present;
  return members.emplace_back(member{on, 0, {}});
}

void capture::add(const stream_ptr& on, operation&& node) {
  member& place = enter(on);
  const auto index = static_cast<std::uint32_t>(&place - members.data());
  place.order.set(index, ++place.nodes);
  places.push_back({index, place.nodes});
  made->nodes.push_back(std::move(node));
}

std::optional<capture::clash> capture::clash_of(const stream_ptr& on, const operation& node) {
  const vector_clock& order = enter(on).order;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto [member, number] = places[i];
    if (members[member].on == on || order.covers(member, number)) continue;
    for (const touched& mine : node.touches)
      for (const touched& other : made->nodes[i].touches) {
        const bool overlap = mine.address < other.address + other.bytes && other.address < mine.address + mine.bytes;
        if (overlap && (mine.write || other.write))
          return clash{{members[member].on->id, number, made->nodes[i].action}, mine};
      }
  }
  return std::nullopt;
}

bool capture::joined() const {
  const vector_clock& origin = members.front().order;
  for (std::size_t i = 0; i < members.size(); ++i)
    if (!origin.covers(static_cast<std::uint32_t>(i), members[i].nodes)) return false;
  return true;
}

} // namespace simulated
