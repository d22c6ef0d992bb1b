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
  made->nodes.push_back(std::move(node));
}

bool capture::joined() const {
  const vector_clock& origin = members.front().order;
  for (std::size_t i = 0; i < members.size(); ++i)
    if (!origin.covers(static_cast<std::uint32_t>(i), members[i].nodes)) return false;
  return true;
}

} // namespace simulated
