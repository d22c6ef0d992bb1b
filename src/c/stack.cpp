// Makes a stack of resources from text such as `limiting(pool(cuda),limit=1GiB)`. Each name is a layer; its upstream
// and its options are in parentheses.
// SPDX-License-Identifier: Apache-2.0
#include "stack.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <cuda.h>

#include "failure.hpp"
#include "options.hpp"
#include "stack_text.hpp"

import gpumem;

#include "counted_source.hpp"
#include "held_pool.hpp"

namespace gpumem::c {
namespace {

[[noreturn]] void refuse_layer(layer_text const& layer, std::string const& reason) {
  throw std::invalid_argument{"gpumem: the resource '" + layer.name() + "' " + reason};
}

// Reads the values of one layer's options, and removes each option that it has read.
class option_values {
public:
  explicit option_values(layer_text& layer) noexcept : layer_{layer} {}

  std::size_t size(std::string_view name, std::size_t usual) {
    auto const value = layer_.take(name);
    if (!value) return usual;
    if (auto const bytes = parse_size(*value)) return *bytes;
    refuse_layer(layer_, "needs a size for '" + std::string{name} + "', not '" + *value + "'");
  }
  std::size_t needed_size(std::string_view name) {
    auto const value = size(name, 0);
    if (value == 0) refuse_layer(layer_, "needs the option '" + std::string{name} + "'");
    return value;
  }
  template <class Number> Number number(std::string_view name, Number usual) {
    auto const value = layer_.take(name);
    if (!value) return usual;
    Number result{};
    auto const [end, error] = std::from_chars(value->data(), value->data() + value->size(), result);
    if (error == std::errc{} && end == value->data() + value->size()) return result;
    refuse_layer(layer_, "needs a number for '" + std::string{name} + "', not '" + *value + "'");
  }
  std::string text(std::string_view name) {
    auto value = layer_.take(name);
    if (!value) refuse_layer(layer_, "needs the option '" + std::string{name} + "'");
    return *std::move(value);
  }

private:
  layer_text& layer_;
};

// The facts that all layers of a stack share.
struct stack_base {
  int device;
  gpumem_callbacks const* callbacks = nullptr; // null: the stack has no layer `callbacks`
  stack_parts* parts = nullptr;                // null: the outermost resource is a pool, which needs none
  any_pool const* watched = nullptr;           // stands for the first layer that does not watch; null: none does
};

// Erases a pool, or a resource with pools of its own, inside a stack.
template <class Pool> any_pool pool_inside(stack_base const& base, Pool pool) {
  if (base.parts) {
    base.parts->synchronize.push_back([pool](auto longest) mutable { return pool.synchronize(longest); });
    base.parts->reset_peaks.push_back([pool]() mutable { pool.reset_peaks(); });
  }
  return any_pool{std::move(pool)};
}

// Erases a source of the whole process, whose own statistics are those of all stacks.
template <class Source> any_pool source_inside(stack_base const& base, Source source) {
  counted_source<Source> counted{std::move(source)};
  if (base.parts) base.parts->reset_peaks.push_back([counted] { counted.reset_peaks(); });
  return any_pool{std::move(counted)};
}

any_pool make_layer(stack_base const& base, layer_text layer);

// Returns the one resource in the parentheses.
any_pool upstream_of(stack_base const& base, layer_text const& layer) {
  if (layer.inner().size() == 1) return make_layer(base, layer.inner().front());
  refuse_layer(layer, "needs one resource in its parentheses");
}

// Returns the one resource in the parentheses. If there is none, returns a cuda_resource, which calls cuMemAlloc.
any_pool upstream_or_cuda(stack_base const& base, layer_text const& layer) {
  return layer.inner().empty() ? source_inside(base, cuda_resource{gpumem::device{base.device}})
                               : upstream_of(base, layer);
}

fixed_size_resource<any_pool> make_fixed(stack_base const& base, layer_text layer) {
  option_values values{layer};
  fixed_size_options options;
  options.block_size = values.needed_size("block_size");
  options.blocks_per_chunk = values.number("blocks_per_chunk", options.blocks_per_chunk);
  options.pool = parse_options(layer.rest(), options.pool);
  return fixed_size_resource<any_pool>{upstream_or_cuda(base, layer), std::move(options)};
}

arena_resource<any_pool> make_arena(stack_base const& base, layer_text layer) {
  option_values values{layer};
  arena_options options;
  options.arena_size = values.size("arena_size", options.arena_size);
  options.max_arenas = values.number("max_arenas", options.max_arenas);
  options.pool = parse_options(layer.rest(), options.pool);
  return arena_resource<any_pool>{upstream_or_cuda(base, layer), std::move(options)};
}

// Adds one bin of the option `bins`. Its text is a size, a colon, and `fixed`, `upstream` or a resource.
void add_bin(stack_base const& base, binning_resource<any_pool>& bins, layer_text const& layer, std::string_view text) {
  auto const colon = text.find(':');
  auto const size = parse_size(trimmed(text.substr(0, colon)));
  if (!size || colon == std::string_view::npos)
    refuse_layer(layer, "needs bins as in 256KiB:fixed;1MiB:upstream, not '" + std::string{text} + "'");
  auto const what = trimmed(text.substr(colon + 1));
  if (what == "fixed") return bins.add_fixed_bin(*size);
  if (what == "upstream") return bins.add_upstream_bin(*size);
  bins.add_bin(*size, make_layer(base, layer.read_inside(what)));
}

any_pool make_binning(stack_base const& base, layer_text layer) {
  option_values values{layer};
  binning_options options;
  options.min_exponent = values.number("min_exponent", options.min_exponent);
  options.max_exponent = values.number("max_exponent", options.max_exponent);
  options.blocks_per_chunk = values.number("blocks_per_chunk", options.blocks_per_chunk);
  auto const bins = layer.take("bins");
  layer.expect_no_more("bins, min_exponent, max_exponent, blocks_per_chunk");
  binning_resource made{upstream_of(base, layer), options};
  if (bins) {
    for (auto const each : split_outside(*bins, ';')) add_bin(base, made, layer, each);
  }
  return pool_inside(base, std::move(made)); // which asks the fixed bins
}

any_pool make_failing(stack_base const& base, layer_text layer) {
  option_values values{layer};
  failing_options options;
  options.every = values.number("every", options.every);
  options.first = values.number("first", options.first);
  options.count = values.number("count", options.count);
  options.probability = values.number("probability", options.probability);
  options.seed = values.number("seed", options.seed);
  layer.expect_no_more("every, first, count, probability, seed");
  return any_pool{failing_adaptor{upstream_of(base, layer), options}};
}

any_pool make_limiting(stack_base const& base, layer_text layer) {
  auto const limit = option_values{layer}.needed_size("limit");
  layer.expect_no_more("limit");
  return any_pool{limiting_adaptor{upstream_of(base, layer), {.limit = limit}}};
}

any_pool make_logging(stack_base const& base, layer_text layer) {
  option_values values{layer};
  logging_options options;
  auto const file = values.text("file");
  options.keep_last = values.number("keep_last", options.keep_last);
  auto const format = layer.take("format");
  layer.expect_no_more("file, format, keep_last");
  if (format && *format != "csv" && *format != "binary")
    refuse_layer(layer, "writes csv or binary, not '" + *format + "'");
  if (format == "binary") options.format = log_format::binary;
  return any_pool{logging_adaptor{upstream_of(base, layer), extend::log_sink{file}, options}};
}

any_pool make_statistics(stack_base const& base, layer_text layer) {
  layer.expect_no_more("");
  return any_pool{statistics_adaptor{upstream_of(base, layer)}};
}

any_pool make_callbacks(stack_base const& base, layer_text layer) {
  layer.expect_no_more("");
  if (!base.callbacks) refuse_layer(layer, "needs gpumem_make_pool_over");
  auto const of = *base.callbacks;
  return any_pool{callback_resource{gpumem::device{base.device},
                                    [of](stream_ref stream, std::size_t bytes, std::size_t alignment) {
                                      return of.allocate(of.context, stream.get(), bytes, alignment);
                                    },
                                    [of](stream_ref stream, void* pointer, std::size_t bytes, std::size_t alignment) {
                                      of.free(of.context, stream.get(), pointer, bytes, alignment);
                                    }}};
}

any_pool make_prefetch(stack_base const& base, layer_text layer) {
  auto const to = layer.take("to");
  layer.expect_no_more("to");
  if (to && *to != "device" && *to != "host")
    refuse_layer(layer, "moves blocks to device or to host, not to '" + *to + "'");
  prefetch_options options{.location = gpumem::device{base.device}};
  if (to == "host") options.location = memory_location::host();
  return any_pool{prefetch_adaptor{upstream_of(base, layer), options}};
}

any_pool make_aligned(stack_base const& base, layer_text layer) {
  option_values values{layer};
  aligned_options options;
  options.alignment = values.size("alignment", options.alignment);
  options.threshold = values.size("threshold", options.threshold);
  layer.expect_no_more("alignment, threshold");
  return any_pool{aligned_adaptor{upstream_of(base, layer), options}};
}

any_pool make_fallback(stack_base const& base, layer_text layer) {
  layer.expect_no_more("");
  if (layer.inner().size() != 2) refuse_layer(layer, "needs two resources in its parentheses");
  return any_pool{fallback_adaptor{make_layer(base, layer.inner()[0]), make_layer(base, layer.inner()[1])}};
}

any_pool make_thread_safe(stack_base const& base, layer_text layer) {
  layer.expect_no_more("");
  return any_pool{thread_safe_adaptor{upstream_of(base, layer)}};
}

// The option `report` names a file; its default `stderr` is standard error.
any_pool make_tracking(stack_base const& base, layer_text layer) {
  option_values values{layer};
  tracking_options options;
  options.stack_depth = values.number("stack_depth", options.stack_depth);
  options.freed_remembered = values.number("freed_remembered", options.freed_remembered);
  auto const report = layer.take("report").value_or("stderr");
  layer.expect_no_more("stack_depth, freed_remembered, report");
  options.report_at_end = report == "stderr" ? extend::log_sink{std::cerr} : extend::log_sink{report};
  return any_pool{tracking_adaptor{upstream_of(base, layer), std::move(options)}};
}

void expect_no_upstream(layer_text const& layer) {
  if (!layer.inner().empty()) refuse_layer(layer, "has no resource in its parentheses");
}

template <class Source> any_pool make_source(stack_base const& base, layer_text layer) {
  layer.expect_no_more("");
  expect_no_upstream(layer);
  Source made{gpumem::device{base.device}};
  if constexpr (requires { made.reset_peaks(); }) { // a driver's pool of this stack alone
    if (base.parts) base.parts->reset_peaks.push_back([made]() mutable { made.reset_peaks(); });
    return any_pool{std::move(made)};
  } else {
    return source_inside(base, std::move(made));
  }
}

any_pool make_system(stack_base const& base, layer_text layer) {
  auto const headroom = option_values{layer}.size("headroom", 0);
  layer.expect_no_more("headroom");
  expect_no_upstream(layer);
  return source_inside(base, system_resource{gpumem::device{base.device}, {.headroom = headroom}});
}

any_pool make_pool_layer(stack_base const& base, layer_text layer) {
  auto options = parse_options(layer.rest());
  if (layer.inner().empty()) return pool_inside(base, pool_resource{gpumem::device{base.device}, std::move(options)});
  return pool_inside(base, pool_resource{upstream_of(base, layer), std::move(options)});
}

struct known_layer {
  std::string_view name;
  any_pool (*make)(stack_base const& base, layer_text layer);
  bool watches = false; // passes each request on as it is
};

constexpr std::array known_layers{
    known_layer{"aligned", make_aligned},
    known_layer{"arena", [](stack_base const& base,
                            layer_text layer) { return pool_inside(base, make_arena(base, std::move(layer))); }},
    known_layer{"async", make_source<async_resource>},
    known_layer{"async_managed", make_source<async_managed_resource>},
    known_layer{"binning", make_binning},
    known_layer{"callbacks", make_callbacks},
    known_layer{"cuda", make_source<cuda_resource>},
    known_layer{"failing", make_failing},
    known_layer{"fallback", make_fallback},
    known_layer{"fixed", [](stack_base const& base,
                            layer_text layer) { return pool_inside(base, make_fixed(base, std::move(layer))); }},
    known_layer{"limiting", make_limiting},
    known_layer{"logging", make_logging, true},
    known_layer{"managed", make_source<managed_resource>},
    known_layer{"pinned", make_source<pinned_resource>},
    known_layer{"pool", make_pool_layer},
    known_layer{"prefetch", make_prefetch},
    known_layer{"statistics", make_statistics, true},
    known_layer{"system", make_system},
    known_layer{"thread_safe", make_thread_safe},
    known_layer{"tracking", make_tracking, true},
};

known_layer const& find_layer(layer_text const& layer) {
  auto const found = std::ranges::find(known_layers, layer.name(), &known_layer::name);
  if (found != known_layers.end()) return *found;
  std::string names;
  for (auto const& known : known_layers) names += (names.empty() ? "" : ", ") + std::string{known.name};
  refuse_layer(layer, "is unknown; the resources are " + names);
}

any_pool make_layer(stack_base const& base, layer_text layer) {
  auto const& known = find_layer(layer);
  return base.watched && !known.watches ? *base.watched : known.make(base, std::move(layer));
}

void check_layer(layer_text const& layer) {
  find_layer(layer);
  for (auto const& each : layer.inner()) check_layer(each);
}

// Returns a pool of the C ABI over a pool, or over the layers that watch it.
template <class R> std::unique_ptr<gpumem_pool> hold(stack_base const& base, R resource, layer_text const& outer) {
  if (!find_layer(outer).watches) return std::make_unique<held_pool<R>>(base.device, std::move(resource));
  any_pool const watched{resource};
  auto made = make_layer({base.device, base.callbacks, nullptr, &watched}, outer);
  return std::make_unique<watched_pool<R>>(base.device, std::move(resource), std::move(made));
}

// Returns the layer below those that only watch it.
layer_text const& watched_layer(layer_text const& outer) {
  auto const* layer = &outer;
  while (find_layer(*layer).watches && layer->inner().size() == 1) layer = &layer->inner().front();
  return *layer;
}

std::unique_ptr<gpumem_pool> make_outer(stack_base const& base, layer_text outer, pool_options const& plain) {
  auto const& layer = watched_layer(outer);
  if (layer.name() == "pool") {
    auto options = parse_options(layer.rest(), plain);
    if (!layer.inner().empty()) return hold(base, pool_resource{upstream_of(base, layer), std::move(options)}, outer);
    return hold(base, pool_resource{gpumem::device{base.device}, std::move(options)}, outer);
  }
  if (layer.name() == "fixed") return hold(base, make_fixed(base, layer), outer);
  if (layer.name() == "arena") return hold(base, make_arena(base, layer), outer);
  stack_parts parts;
  auto made = make_layer({base.device, base.callbacks, &parts}, std::move(outer));
  return std::make_unique<recorded_pool>(base.device, std::move(made), std::move(parts));
}

} // namespace

void check_stack(std::string_view text) {
  if (layer_text::describes_stack(text)) return check_layer(layer_text::read(text));
  parse_options(text);
}

bool has_changing_limit(std::string_view text) {
  auto const outer = layer_text::read(text);
  auto const& name = watched_layer(outer).name();
  return name == "pool" || name == "fixed" || name == "arena";
}

std::unique_ptr<gpumem_pool> make_stack(int device, std::string_view text, pool_options const& plain) {
  catch_misuse();
  if (!layer_text::describes_stack(text)) return make_plain_pool(device, parse_options(text, plain));
  return make_outer({device}, layer_text::read(text), plain);
}

std::unique_ptr<gpumem_pool> make_stack_over(int device, gpumem_callbacks const& callbacks, std::string_view text) {
  catch_misuse();
  if (callbacks.size < sizeof callbacks || !callbacks.allocate || !callbacks.free)
    throw std::invalid_argument{"gpumem: the callbacks need a size, and two functions that are not NULL"};
  stack_base const base{device, &callbacks};
  if (layer_text::describes_stack(text)) return make_outer(base, layer_text::read(text), {});
  return make_outer(
      base, layer_text::read("pool(callbacks" + (trimmed(text).empty() ? "" : "," + std::string{text}) + ")"), {});
}

} // namespace gpumem::c
