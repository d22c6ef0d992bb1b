// Asio, without Boost.
// SPDX-License-Identifier: Apache-2.0
#include <asio/io_context.hpp>
#include <asio/post.hpp>

int main() {
  asio::io_context context;
  asio::post(context, [] {});
  return context.run() != 1;
}
