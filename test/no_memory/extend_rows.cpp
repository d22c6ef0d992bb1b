// Rows of what authors of resources and tools use, and the names that need no row.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>

#include <cstddef>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;

#include "parts.hpp"

namespace no_memory {
namespace {

void use_traces() {
  std::ostringstream text;
  gpumem::extend::trace_writer writer{text};
  gpumem::extend::trace_record const record{};
  writer.write(record);
  gpumem::extend::format_row(record);
  gpumem::extend::trace_reader reader{text.str()};
  reader.read_all();
}

void use_pages() {
  gpumem::extend::virtual_pages pages{with().card, {.address_space = 64 * MiB}};
  if (!pages.map(0, 4 * MiB, 2 * MiB)) return;
  gpumem::extend::page_origin const run{&pages, {0, 2 * MiB}};
  pages.move({&run, 1}, 8 * MiB);
  pages.unmap(2 * MiB, 2 * MiB);
}

} // namespace

std::vector<row> extend_rows() {
  return {
      {"extend::trace_reader extend::trace_writer extend::trace_record extend::trace_row extend::format_row",
       use_traces},
      {"extend::virtual_pages virtual_pages_options extend::page_origin", use_pages},
      {"extend::make_any_memory extend::any_memory",
       [] { auto const held = gpumem::extend::make_any_memory(with().pool); }},
      {"extend::services_of extend::services_handle extend::services_table extend::services",
       [] { gpumem::extend::services_of(with().pool); }},
      {"extend::adaptor_base extend::adaptor_state extend::resource_base extend::resource_state extend::shared_state "
       "extend::state_ptr",
       [] { serve_fully(gpumem::limiting_adaptor{gpumem::statistics_adaptor{with().pool}, {.limit = 64 * MiB}}); }},
  };
}

} // namespace no_memory
