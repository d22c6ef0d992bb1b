// Memory of PyTorch that other processes map as pages.
// SPDX-License-Identifier: Apache-2.0
#include "torch_fixture.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr int device = 0;
constexpr auto named = "GPUMEM_TEST_SHARED_NAME";
constexpr auto ran_file = "GPUMEM_TEST_RAN";

struct shared_name {
  char text[GPUMEM_TORCH_NAME_SIZE] = "";
  std::size_t offset = 0;
};

class torch_sharing : public torch_blocks {
protected:
  static void SetUpTestSuite() {
    torch::SetUpTestSuite();
    char folder[] = "/tmp/gpumem_sharing_XXXXXX";
    if (std::getenv(named) == nullptr) ::setenv("XDG_RUNTIME_DIR", ::mkdtemp(folder), 1);
  }
  static void TearDownTestSuite() {
    if (std::getenv(named) == nullptr) std::filesystem::remove_all(std::getenv("XDG_RUNTIME_DIR"));
  }

  static shared_name share(void const* pointer) {
    shared_name made;
    EXPECT_EQ(gpumem_torch_share_block(pointer, made.text, &made.offset), GPUMEM_GRANTED) << gpumem_last_error();
    return made;
  }
  static void expect_refused(std::string const& name, gpumem_outcome expected, char const* text) {
    void* base = nullptr;
    EXPECT_EQ(gpumem_torch_open_shared(name.c_str(), device, &base), expected);
    EXPECT_THAT(gpumem_last_error(), HasSubstr(text));
    EXPECT_EQ(base, nullptr);
  }
  static char* open(shared_name const& name) {
    void* base = nullptr;
    EXPECT_EQ(gpumem_torch_open_shared(name.text, device, &base), GPUMEM_GRANTED) << gpumem_last_error();
    return base ? static_cast<char*>(base) + name.offset : nullptr;
  }
  struct process {
    pid_t id = 0;
    std::string ran; // the file by which the test tells that it has run
  };
  /// Starts one test of this program in a process of its own, in which the environment has the name.
  static process start(char const* test, shared_name const& name) {
    static int started = 0;
    process made{0, in_folder("ran" + std::to_string(++started))};
    ::setenv(named, (std::to_string(name.offset) + " " + name.text).c_str(), 1);
    auto filter = std::string{"--gtest_filter="} + test;
    char program[] = "/proc/self/exe";
    char all[] = "--gtest_also_run_disabled_tests";
    char* arguments[] = {program, filter.data(), all, nullptr};
    ::setenv(ran_file, made.ran.c_str(), 1);
    EXPECT_EQ(::posix_spawn(&made.id, program, nullptr, nullptr, arguments, environ), 0);
    ::unsetenv(named);
    return made;
  }
  /// Waits for the end of the process, and returns its status; -1 if it ran no test.
  static int end_of(process const& other) {
    int status = -1;
    EXPECT_EQ(::waitpid(other.id, &status, 0), other.id);
    return std::filesystem::remove(other.ran) ? status : -1;
  }
  static int run_in_another_process(char const* test, shared_name const& name) { return end_of(start(test, name)); }
  static std::string in_folder(std::string const& file) { return std::getenv("XDG_RUNTIME_DIR") + ("/" + file); }
  static void wait_for_file(std::string const& file) {
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (!std::filesystem::exists(file) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  }
  /// Tells the process that waits that this test has run.
  static void tell_end() { std::ofstream{std::getenv(ran_file)}; }
  static shared_name name_of_parent() {
    shared_name name;
    char* text = nullptr;
    name.offset = std::strtoull(std::getenv(named), &text, 10);
    std::string{text + 1}.copy(name.text, sizeof name.text - 1);
    return name;
  }
  static std::size_t open_files() {
    auto const files = std::filesystem::directory_iterator{"/proc/self/fd"};
    return static_cast<std::size_t>(std::distance(begin(files), end(files)));
  }
};

constexpr std::size_t large = 200 * mib; // 100 pages, in two messages

TEST_F(torch_sharing, DISABLED_reads_and_writes) {
  auto* const bytes = open(name_of_parent());
  ASSERT_NE(bytes, nullptr);
  for (std::size_t at = 0; at < large; at += mib) EXPECT_EQ(bytes[at], static_cast<char>(at / mib));
  std::memcpy(bytes + 8, "answer", 6);
  EXPECT_EQ(gpumem_torch_close_shared(bytes - name_of_parent().offset), GPUMEM_GRANTED) << gpumem_last_error();
  tell_end();
}

TEST_F(torch_sharing, another_process_reads_and_writes_a_block) {
  auto* const stream = make_stream(device);
  auto* const before = allocate_block(512, device, stream);
  auto* const block = static_cast<char*>(allocate_block(large, device, stream));
  simulator::run_until_idle();
  for (std::size_t at = 0; at < large; at += mib) block[at] = static_cast<char>(at / mib);
  auto const name = share(block);
  auto const files = open_files();
  process const readers[] = {start("torch_sharing.DISABLED_reads_and_writes", name),
                             start("torch_sharing.DISABLED_reads_and_writes", name)};
  for (auto const& each : readers) EXPECT_EQ(end_of(each), 0);
  EXPECT_EQ(std::memcmp(block + 8, "answer", 6), 0);
  // A reader can end before the thread that serves it has closed the descriptors that it sent.
  for (int tries = 0; open_files() != files && tries < 10'000; ++tries) usleep(1'000);
  EXPECT_EQ(open_files(), files);
  auto const again = share(block + mib);
  EXPECT_STREQ(again.text, name.text) << "a block has one name";
  EXPECT_EQ(again.offset, name.offset + mib);

  free_block(block);
  auto const reserved = figures(device).reserved.current;
  empty_cache();
  EXPECT_LT(figures(device).reserved.current, reserved - large / 2) << "the pages are not kept in place any more";
  expect_refused(name.text, GPUMEM_DRIVER_ERROR, "does not share this memory any more");
  free_block(before);
}

TEST_F(torch_sharing, block_of_a_mem_pool_is_shared_from_its_middle) {
  auto* const stream = make_stream(device);
  constexpr gpumem_torch_pool_id pool{7, 7};
  gpumem_torch_begin_allocate_to_pool(device, pool, [](CUstream_st*) { return true; });
  auto* const before = allocate_block(512, device, stream);
  auto* const block = static_cast<char*>(allocate_block(mib, device, stream));
  gpumem_torch_end_allocate_to_pool(device, pool);
  auto const middle = share(block + 4096), whole = share(block);
  EXPECT_STREQ(middle.text, whole.text);
  EXPECT_EQ(middle.offset, whole.offset + 4096);
  auto* const here = open(middle);
  std::memset(block, 5, 2 * 4096);
  EXPECT_EQ(here[0], 5);
  EXPECT_EQ(gpumem_torch_close_shared(here - middle.offset), GPUMEM_GRANTED);
  free_block(block);
  expect_refused(whole.text, GPUMEM_DRIVER_ERROR, "does not share this memory any more");
  free_block(before);
  gpumem_torch_release_pool(device, pool);
}

TEST_F(torch_sharing, DISABLED_shares_until_it_is_opened) {
  auto* const block = static_cast<char*>(allocate_block(4 * mib, device, make_stream(device)));
  simulator::run_until_idle();
  std::memset(block, 42, 4 * mib);
  auto const name = share(block);
  std::ofstream{in_folder("name_written")} << name.offset << ' ' << name.text;
  std::filesystem::rename(in_folder("name_written"), in_folder("name"));
  wait_for_file(in_folder("opened"));
  tell_end();
}

TEST_F(torch_sharing, memory_outlives_the_process_that_shared_it) {
  make_current(device);
  auto const producer = start("torch_sharing.DISABLED_shares_until_it_is_opened", {});
  wait_for_file(in_folder("name"));
  shared_name name;
  std::ifstream{in_folder("name")} >> name.offset >> name.text;
  auto* const bytes = open(name);
  std::ofstream{in_folder("opened")};
  EXPECT_EQ(end_of(producer), 0);
  ASSERT_NE(bytes, nullptr);
  for (std::size_t at = 0; at < 4 * mib; at += mib) EXPECT_EQ(bytes[at], 42);
  bytes[0] = 1;
  EXPECT_EQ(gpumem_torch_close_shared(bytes - name.offset), GPUMEM_GRANTED) << gpumem_last_error();
  expect_refused(name.text, GPUMEM_DRIVER_ERROR, "cannot be reached");
}

TEST_F(torch_sharing, a_new_block_at_the_same_address_has_another_name) {
  auto* const stream = make_stream(device);
  auto* const first = allocate_block(4 * mib, device, stream);
  auto const old = share(first);
  free_block(first);
  auto* const second = allocate_block(4 * mib, device, stream);
  ASSERT_EQ(second, first);
  auto const now = share(second);
  EXPECT_STRNE(now.text, old.text);
  auto* const here = open(now); // in the process that shares it
  EXPECT_NE(here, second);
  std::memset(second, 7, 100);
  EXPECT_EQ(here[99], 7);
  EXPECT_EQ(gpumem_torch_close_shared(here - now.offset), GPUMEM_GRANTED);
  EXPECT_EQ(gpumem_torch_close_shared(here - now.offset), GPUMEM_INVALID_ARGUMENT);
  free_block(second);
}

TEST_F(torch_sharing, what_is_no_shared_memory_is_refused) {
  auto* const block = allocate_block(mib, device, make_stream(device));
  shared_name name = share(block);
  std::size_t offset = 0;
  EXPECT_EQ(gpumem_torch_share_block(&offset, name.text, &offset), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("lies in no live block"));
  EXPECT_EQ(gpumem_torch_share_block(block, nullptr, &offset), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_torch_open_shared(name.text, device, nullptr), GPUMEM_INVALID_ARGUMENT);
  for (auto const* const wrong : {"", "name", "12", "12:", "12:relative/path", "xyz:/tmp"})
    expect_refused(wrong, GPUMEM_INVALID_ARGUMENT, "no name of shared memory");
  auto const path = std::string{name.text}.substr(std::string{name.text}.find(':'));
  expect_refused("1" + path, GPUMEM_DRIVER_ERROR, "does not share this memory any more");
  expect_refused("1:/nowhere", GPUMEM_DRIVER_ERROR, "cannot be reached at /nowhere");
  expect_refused("1:/" + std::string(200, 'x'), GPUMEM_DRIVER_ERROR, "is too long");
  struct stat facts{};
  ASSERT_EQ(::stat(path.c_str() + 1, &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777u, 0600u);
  free_block(block);
}

// Answers one request as another process would: with the numbers, and then with a file that is no page.
void answer_once(int listening, std::array<std::uint64_t, 3> numbers, std::uint64_t page_bytes) {
  int const other = ::accept(listening, nullptr, nullptr);
  std::array<std::uint64_t, 3> request{};
  EXPECT_EQ(::recv(other, &request, sizeof request, 0), static_cast<ssize_t>(sizeof request));
  ::send(other, &numbers, sizeof numbers, MSG_NOSIGNAL);
  int const file = ::open("/dev/null", O_RDONLY);
  iovec text{&page_bytes, sizeof page_bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof file)] = {};
  msghdr message{nullptr, 0, &text, 1, control, sizeof control, 0};
  auto* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof file);
  std::memcpy(CMSG_DATA(header), &file, sizeof file);
  ::sendmsg(other, &message, MSG_NOSIGNAL);
  ::close(file);
  ::close(other);
}

sockaddr_un address_of(std::string const& path) {
  sockaddr_un made{AF_UNIX, {}};
  path.copy(made.sun_path, sizeof made.sun_path - 1);
  return made;
}

int listen_at(std::string const& path, int backlog) {
  auto const address = address_of(path);
  int const made = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  EXPECT_EQ(::bind(made, reinterpret_cast<sockaddr const*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(made, backlog), 0);
  return made;
}

// Connects to the listening socket at the path. Returns -1 if it accepts no connection now.
int connect_to(std::string const& path) {
  auto const address = address_of(path);
  int const made = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
  if (::connect(made, reinterpret_cast<sockaddr const*>(&address), sizeof address) == 0) return made;
  ::close(made);
  return -1;
}

TEST_F(torch_sharing, wrong_answers_are_refused) {
  make_current(device);
  auto const path = std::string{std::getenv("XDG_RUNTIME_DIR")} + "/wrong";
  int const listening = listen_at(path, 1);
  constexpr std::uint64_t right = 0x31'65'67'61'70'6d'70'67;
  struct answer {
    std::array<std::uint64_t, 3> numbers;
    std::uint64_t page_bytes;
    gpumem_outcome outcome;
    char const* text;
  };
  answer const wrong[] = {
      {{1, 2 * mib, 1}, 2 * mib, GPUMEM_DRIVER_ERROR, "makes no sense"},
      {{right, std::uint64_t{1} << 60, 1}, 2 * mib, GPUMEM_DRIVER_ERROR, "makes no sense"},
      {{right, 2 * mib, 1}, 4 * mib, GPUMEM_DRIVER_ERROR, "a page of a wrong size"},
      {{right, 2 * mib, 1}, 0, GPUMEM_DRIVER_ERROR, "a page of a wrong size"},
      {{right, 2 * mib, 1}, 2 * mib, GPUMEM_DRIVER_ERROR, "cuMemImportFromShareableHandle"},
  };
  auto const files = open_files();
  for (auto const& each : wrong) {
    std::thread process{[&] { answer_once(listening, each.numbers, each.page_bytes); }};
    expect_refused("1:" + path, each.outcome, each.text);
    process.join();
  }
  EXPECT_EQ(open_files(), files);
  ::close(listening);
}

TEST_F(torch_sharing, DISABLED_refuses_an_open_folder) {
  auto const folder = std::string{std::getenv("XDG_RUNTIME_DIR")} + "/open";
  ::mkdir(folder.c_str(), 0700);
  ::mkdir((folder + "/gpumem").c_str(), 0700);
  ::chmod((folder + "/gpumem").c_str(), 0755);
  ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  auto* const block = allocate_block(mib, device, make_stream(device));
  shared_name name;
  EXPECT_EQ(gpumem_torch_share_block(block, name.text, &name.offset), GPUMEM_DRIVER_ERROR);
  EXPECT_THAT(gpumem_last_error(), HasSubstr("only its owner"));
  free_block(block);
  tell_end();
}

TEST_F(torch_sharing, a_folder_that_others_can_enter_is_refused) {
  EXPECT_EQ(run_in_another_process("torch_sharing.DISABLED_refuses_an_open_folder", {}), 0);
}

std::string path_of(shared_name const& name) {
  return std::string{name.text}.substr(std::string{name.text}.find(':') + 1);
}

TEST_F(torch_sharing, blocks_are_shared_again_after_too_many_files_were_open) {
  auto* const block = allocate_block(mib, device, make_stream(device));
  auto const name = share(block);
  std::array const clients{connect_to(path_of(name)), connect_to(path_of(name))};
  auto const is_answered = [](int client) {
    std::array<std::uint64_t, 3> const request{};
    EXPECT_EQ(::send(client, &request, sizeof request, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof request));
    pollfd answer{client, POLLIN, 0};
    return ::poll(&answer, 1, 100) == 1;
  };
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit const none{1, before.rlim_max}; // poll() needs one
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  is_answered(clients[0]); // the thread may have a descriptor for one connection
  EXPECT_FALSE(is_answered(clients[1]));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (int const each : clients) ::close(each);
  auto* const here = open(name);
  ASSERT_NE(here, nullptr);
  EXPECT_EQ(gpumem_torch_close_shared(here - name.offset), GPUMEM_GRANTED);
  free_block(block);
}

TEST_F(torch_sharing, close_waits_for_the_device_and_ends_no_capture) {
  auto* const stream = make_stream(device);
  auto* const captured = static_cast<CUstream>(make_stream(device));
  auto* const block = allocate_block(mib, device, stream);
  auto const name = share(block);
  auto* const here = open(name);
  simulator::work(static_cast<CUstream>(stream), {simulator::write(here, 100)});
  EXPECT_EQ(
      driver<decltype(&cuStreamBeginCapture_v2)>("cuStreamBeginCapture_v2")(captured, CU_STREAM_CAPTURE_MODE_GLOBAL),
      CUDA_SUCCESS);
  EXPECT_EQ(gpumem_torch_close_shared(here - name.offset), GPUMEM_GRANTED) << gpumem_last_error();
  CUgraph graph = nullptr;
  EXPECT_EQ(driver<decltype(&cuStreamEndCapture)>("cuStreamEndCapture")(captured, &graph), CUDA_SUCCESS);
  driver<decltype(&cuGraphDestroy)>("cuGraphDestroy")(graph);
  free_block(block);
}

// In a folder that processes of several PID namespaces share, a process with the same number can have its socket.
TEST_F(torch_sharing, DISABLED_shares_beside_a_process_that_accepts_nothing) {
  ::alarm(20);
  auto const path = std::string{std::getenv("XDG_RUNTIME_DIR")} + "/gpumem/" + std::to_string(::getpid()) + ".pages";
  for (listen_at(path, 0); connect_to(path) >= 0;) {} // until its line is full
  auto* const block = allocate_block(mib, device, make_stream(device));
  EXPECT_NE(path_of(share(block)), path);
  EXPECT_TRUE(std::filesystem::is_socket(path)) << "the other process lives";
  ::unlink(path.c_str());
  free_block(block);
  tell_end();
}

TEST_F(torch_sharing, another_process_that_accepts_nothing_is_left_alone) {
  auto* const block = allocate_block(mib, device, make_stream(device));
  share(block); // makes the folder
  EXPECT_EQ(run_in_another_process("torch_sharing.DISABLED_shares_beside_a_process_that_accepts_nothing", {}), 0);
  free_block(block);
}

// The process that has shared a block and ended has left its socket behind; the next one removes it.
TEST_F(torch_sharing, DISABLED_shares_and_ends) {
  auto* const block = allocate_block(mib, device, make_stream(device));
  share(block);
  auto const folder = std::filesystem::path{std::getenv("XDG_RUNTIME_DIR")} / "gpumem";
  auto const sockets = std::filesystem::directory_iterator{folder};
  EXPECT_LE(std::distance(begin(sockets), end(sockets)), 2) << "this one, and perhaps that of the process that waits";
  free_block(block);
  tell_end();
}

TEST_F(torch_sharing, sockets_of_ended_processes_go) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run_in_another_process("torch_sharing.DISABLED_shares_and_ends", {}), 0);
  EXPECT_EQ(run_in_another_process("torch_sharing.no_such_test", {}), -1);
}

} // namespace
