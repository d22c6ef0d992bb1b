// The table of contents of the replay tool: what it is made of, from the ground up.
// SPDX-License-Identifier: Apache-2.0
export module replay;

export import :bytes;
export import :plan;
export import :trace_file;
export import :options;
export import :progress;
export import :result;
export import :table;
export import :json;
