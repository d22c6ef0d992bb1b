// Sends the pages of shared blocks to other processes.
// SPDX-License-Identifier: Apache-2.0
#include "shared_blocks.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace gpumem::c {
namespace {

std::string name_of(std::uint64_t id, std::string const& path) {
  constexpr int hexadecimal = 16;
  std::array<char, 2 * sizeof id> digits{};
  auto const end = std::to_chars(digits.data(), digits.data() + digits.size(), id, hexadecimal).ptr;
  return std::string{digits.data(), end} + ":" + path;
}

/// Starts a thread that receives no signals: those are for the program's threads.
template <class Work> void start_thread(Work work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread{std::move(work)}.detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

} // namespace

pinned_pages::pinned_pages(gpumem_pool& pool, void const* block, std::size_t bytes) : pool_{pool} {
  auto const* at = static_cast<char const*>(block);
  auto const* const end = at + bytes;
  try {
    while (at < end) {
      auto const page = pool.export_page(at);
      owned_file const closed{page.descriptor};
      if (!base_) base_ = static_cast<char*>(page.base);
      bytes_ += page.bytes;
      ++pages_;
      at = base_ + bytes_;
    }
  } catch (...) {
    if (base_) pool_.unpin(base_, bytes_);
    throw;
  }
}

pinned_pages::~pinned_pages() { pool_.unpin(base_, bytes_); }

void pinned_pages::send(page_socket& to) const {
  std::vector<sent_page> message;
  message.reserve(pages_per_message);
  for (auto* at = base_; at < base_ + bytes_;) {
    auto const page = pool_.export_page(at);
    message.push_back({owned_file{page.descriptor}, page.bytes});
    pool_.unpin(page.base, page.bytes); // the constructor's pin stays
    at += page.bytes;
    if (message.size() < pages_per_message && at < base_ + bytes_) continue;
    to.send_pages(message);
    message.clear();
  }
}

// Takes no host memory: PyTorch's pools refer to it, which are made by noexcept functions.
shared_blocks& shared_blocks::instance() {
  alignas(shared_blocks) static std::byte place[sizeof(shared_blocks)];
  static auto* const all = ::new (place) shared_blocks;
  return *all;
}

shared_blocks::name shared_blocks::share(gpumem_pool& pool, void const* block, std::size_t bytes) {
  support::scoped_lock const held{mutex_};
  auto found = blocks_.find(block);
  if (found == blocks_.end()) {
    // No earlier share has had this number, so no process takes new pages for those of an old name.
    record const made{new_random_number(), std::make_shared<pinned_pages const>(pool, block, bytes)};
    if (!socket_) {
      auto opened = std::make_unique<listening_socket>();
      start_thread([this] { serve(); });
      socket_ = std::move(opened);
    }
    found = blocks_.emplace(block, made).first;
    any_.store(true, std::memory_order_relaxed);
  }
  auto const offset = static_cast<char const*>(block) - found->second.pages->base();
  return {name_of(found->second.id, socket_->path()), static_cast<std::size_t>(offset)};
}

// The pages are unpinned without the mutex, since that takes locks of the pool.
void shared_blocks::end(void const* block) noexcept {
  std::shared_ptr<pinned_pages const> ended;
  support::scoped_lock const held{mutex_};
  auto const found = blocks_.find(block);
  if (found == blocks_.end()) return;
  ended = std::move(found->second.pages);
  blocks_.erase(found);
  if (blocks_.empty()) any_.store(false, std::memory_order_relaxed);
}

std::shared_ptr<pinned_pages const> shared_blocks::find(std::uint64_t id) {
  support::scoped_lock const held{mutex_};
  auto const found = std::ranges::find(blocks_, id, [](auto const& each) { return each.second.id; });
  return found == blocks_.end() ? nullptr : found->second.pages;
}

void shared_blocks::answer(owned_file connection) {
  page_socket other{std::move(connection)};
  auto const [request, id, unused] = other.receive();
  auto const pages = request == page_request ? find(id) : nullptr;
  other.send({page_request, pages ? pages->bytes() : 0, pages ? pages->pages() : 0});
  if (pages) pages->send(other);
}

// A process that asks in vain, or stops midway, gets no pages; the next one is served.
void shared_blocks::serve() noexcept {
  auto& socket = [&]() -> listening_socket& {
    support::scoped_lock const held{mutex_};
    return *socket_;
  }();
  while (auto connection = socket.accept()) {
    try {
      answer(std::move(connection));
    } catch (std::exception const&) {}
  }
}

} // namespace gpumem::c
