// Declares that a stream uses graph memory.
// SPDX-License-Identifier: Apache-2.0
module gpumem:graph_resource.impl;
import :graph_resource;
import :cuda;
import :error;
import :graph_memory;
import :resource;
import :stream;

namespace gpumem::detail {

void record_graph_use(graph_memory& state, void* pointer, stream_ref stream) {
  if (!pointer || !may_free()) return;
  auto const where = state.where();
  auto const key = where ? identify(stream, *where) : identify(stream);
  if (!state.serves_stream(key)) throw rule_error{broken_rule::unopened_device, "record_use"};
  state.record_use(key, pointer);
}

} // namespace gpumem::detail
