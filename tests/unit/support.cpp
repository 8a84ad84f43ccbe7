// support.cpp - shared by the cases: environments, child processes, dumps as trees.
#include "support.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "catch.hpp"
#include "format/file_name.hpp"
#include "format/ticks.hpp"
#include "recorder/clock_anchor.hpp"
#include "recorder/identity.hpp"
#include "sample/process.hpp"

// ---------------------------------------------------------------- counting allocations

namespace {
thread_local u_int64_t t_allocations = 0;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*));
namespace {
[[maybe_unused]] const int g_hooked = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t) { ++t_allocations; }, [](const volatile void*) {});
}  // namespace
#elif defined(__GLIBC__)
// The executable's own malloc family comes before libc's; everything ends up there.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

__attribute__((visibility("default"))) void* malloc(size_t n) {
  ++t_allocations;
  return __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(size_t n, size_t size) {
  ++t_allocations;
  return __libc_calloc(n, size);
}
__attribute__((visibility("default"))) void* realloc(void* p, size_t n) {
  ++t_allocations;
  return __libc_realloc(p, n);
}
__attribute__((visibility("default"))) void* aligned_alloc(size_t alignment, size_t n) {
  ++t_allocations;
  return __libc_memalign(alignment, n);
}
}
#endif

namespace fr::test {

namespace fs = std::filesystem;

u64 allocations() {
  return t_allocations;
}

// ---------------------------------------------------------------- files

TempDir::TempDir(const char* below) {
  std::string pattern = std::string(below) + "/fr-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("cannot make a directory below " + std::string(below));
  }
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::vector<std::string> list(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> list_ending(const std::string& dir, const std::string& ending) {
  std::vector<std::string> names = list(dir);
  std::erase_if(names, [&](const std::string& name) { return !name.ends_with(ending); });
  return names;
}

bool exists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

bool eventually(const std::function<bool()>& holds, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// ---------------------------------------------------------------- a recorder without a process

fr_op make_op(fr_group_t group, u16 kind, u32 op) {
  fr_op o{};
  o.struct_bytes = sizeof o;
  o.group = group;
  o.kind = kind;
  o.op = op;
  o.peer = -1;
  return o;
}

Rig::Rig(u32 n_records) {
  static u32 generation = 1000;
  region = create_region(dir.path(), "rig.ring", n_records);
  Header& h = region.header();
  h.clock_kind = choose_clock();
  h.pid = getpid();
  h.start_unix_ns = unix_now_ns();
  h.proc_start = process_start(h.pid);
  h.pid_namespace = pid_namespace();
  h.generation = ++generation;
  h.rank.store(0);
  h.local_rank.store(0);
  h.world_size.store(2);
  h.step.store(INT64_MIN);
  std::snprintf(h.job, sizeof h.job, "rig");
  std::snprintf(h.host, sizeof h.host, "here");
  std::snprintf(region.section<char>(kSecOptions), 64,
                "FR_ENABLE=1\tdefault\nFR_JOB=rig\tFR_JOB\n");
  take_anchor(h.first, h.clock_kind);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  take_anchor(h.last, h.clock_kind);
  h.magic.store(kRegionMagic, std::memory_order_release);
  view = View::of(region.base, region.bytes);
  tables = std::make_unique<Tables>(region);
  hot.header = &h;
  hot.groups = region.section<GroupRow>(kSecGroups);
  hot.lanes = region.section<LaneRow>(kSecLanes);
  hot.blob = region.section<std::atomic<u32>>(kSecBlob);
  hot.crumbs = region.section<Crumb>(kSecCrumbs);
  hot.blob_mask = kBlobWords - 1;
  hot.generation = h.generation;
  hot.clock = h.clock_kind;
  hot.ring.head = &h.head;
  hot.ring.skipped = &h.skipped;
  hot.ring.records = region.section<Record>(kSecRecords);
  hot.ring.status = region.section<Status>(kSecStatus);
  hot.ring.groups = hot.groups;
  hot.ring.mask = n_records - 1;
  hot.ring.quota.store(kQuietQuota < n_records / 4 ? kQuietQuota : n_records / 4);
}

Rig::~Rig() {
  munmap(region.base, region.bytes);
}

u32 Rig::group(const char* name, const std::vector<i32>& ranks) {
  fr_group_info info{};
  info.struct_bytes = sizeof info;
  info.n_ranks = static_cast<i32>(ranks.size());
  info.name = name;
  info.desc = "desc";
  info.backend = "gloo";
  info.ranks = ranks.data();
  return tables->add_group(info, ticks_now(hot.clock));
}

fr_ticket Rig::begin(const fr_op& op) {
  fr_ticket t{};
  fr::begin(hot, op, t);
  return t;
}

RecordCopy Rig::read(const fr_ticket& ticket) {
  RecordCopy copy;
  REQUIRE(ticket.ticket != 0);
  REQUIRE(view.read(static_cast<u32>(ticket.ticket - 1) & hot.ring.mask, copy) == Slot::kWhole);
  REQUIRE(copy.ticket == ticket.ticket - 1);
  copy.shape = copy.shape != nullptr ? copy.shape_buffer : nullptr;
  return copy;
}

std::vector<RecordCopy> Rig::read_all() {
  std::vector<RecordCopy> all;
  RecordCopy copy;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    if (view.read(slot, copy) == Slot::kWhole) {
      all.push_back(copy);
      all.back().shape = nullptr;
    }
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.ticket < b.ticket; });
  return all;
}

// ---------------------------------------------------------------- processes

Child::~Child() {
  if (pid_ > 0 && !ended_) {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void Child::kill(int signal) const {
  REQUIRE(::kill(pid_, signal) == 0);
  if (signal == SIGSTOP) {  // delivered when its threads have stopped, not when kill returns
    siginfo_t info{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) == 0);
  }
}

Ending Child::wait(double seconds) {
  int raw = 0;
  const bool in_time = eventually([&] { return waitpid(pid_, &raw, WNOHANG) == pid_; }, seconds);
  REQUIRE(in_time);
  ended_ = true;
  Ending e;
  e.exited = WIFEXITED(raw);
  e.status = e.exited ? WEXITSTATUS(raw) : -1;
  e.signal = WIFSIGNALED(raw) ? WTERMSIG(raw) : 0;
  return e;
}

namespace {

Board& make_board() {
  void* p = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return *static_cast<Board*>(p);
}

}  // namespace

Scene::Scene() : board(make_board()) {
  mkdir(tmp.c_str(), 0700);
}

Scene::~Scene() {
  munmap(&board, sizeof board);
}

Child Scene::start(int rank, const Environment& options, const std::function<int()>& body,
                   int world_size) {
  std::cout.flush();
  const std::string err = home.path() + "/stderr." + std::to_string(rank);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid > 0) {
    return Child(pid);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int s = 1; s < NSIG; ++s) {
    signal(s, SIG_DFL);  // Catch2's, inherited
  }
  stack_t no_stack{};
  no_stack.ss_flags = SS_DISABLE;
  sigaltstack(&no_stack, nullptr);
  const int fd = open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(fd, STDERR_FILENO);
  clearenv();
  const std::string r = std::to_string(rank);
  const std::string n = std::to_string(world_size);
  Environment environment = {{"FR_SHM_DIR", shm.path()},
                             {"FR_DUMP_DIR", dump_dir},
                             {"FR_JOB", "job"},
                             {"TMPDIR", tmp},
                             {"RANK", r},
                             {"LOCAL_RANK", r},
                             {"WORLD_SIZE", n},
                             {"LOCAL_WORLD_SIZE", n}};
  for (const auto& [name, value] : options) {
    environment[name] = value;
  }
  for (const auto& [name, value] : environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  int status = 99;
  try {
    status = body();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "child: %s\n", e.what());
  }
  exit(status);
}

std::string Scene::ring_dir() const {
  return shm.path() + "/fr-" + std::to_string(geteuid());
}

std::string Scene::dump_path(int rank, int incident) const {
  return dump_dir + "/job.a0.r" + std::to_string(rank) + "." + std::to_string(incident) + ".fr";
}

bool Scene::reached(int cell, u64 value, double seconds) const {
  return eventually([&] { return board.cell[cell].load() >= value; }, seconds);
}

fr_group_t child_group(const char* name, int own_rank, int n_ranks) {
  std::vector<i32> ranks;
  for (i32 i = 0; i < n_ranks; ++i) {
    ranks.push_back(i);
  }
  fr_group_info info{};
  info.struct_bytes = sizeof info;
  info.n_ranks = n_ranks;
  info.own_rank = own_rank;
  info.name = name;
  info.desc = "default_pg";
  info.backend = "gloo";
  info.ranks = ranks.data();
  return fr_group(&info);
}

fr_ticket child_begin(fr_group_t group, const char* op, u16 flags) {
  fr_op o = make_op(group, FR_COLLECTIVE, fr_intern(op, std::char_traits<char>::length(op)));
  o.flags = flags;
  fr_ticket t;
  fr_begin(&o, &t);
  return t;
}

void sleep_for_ever() {
  for (;;) {
    // Not pause(): ThreadSanitizer holds a signal that comes just before it until the next call.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

RingFile::RingFile(const std::string& path)
    : mapping_(map_file(path.c_str())), view_(View::of(mapping_.base, mapping_.bytes)) {}

RingFile::~RingFile() {
  unmap_file(mapping_);
}

// ---------------------------------------------------------------- dumps

Node Node::operator[](std::string_view key) const {
  if (is_map()) {
    for (u32 i = 0; i < o_->via.map.size; ++i) {
      const auto& pair = o_->via.map.ptr[i];
      if (pair.key.type == msgpack::type::STR && pair.key.as<std::string>() == key) {
        return Node(pair.val);
      }
    }
  }
  throw std::out_of_range("no key " + std::string(key));
}

Node Node::at(std::size_t index) const {
  if (!is_array() || index >= o_->via.array.size) {
    throw std::out_of_range("no element " + std::to_string(index));
  }
  return Node(o_->via.array.ptr[index]);
}

bool Node::has(const char* key) const {
  const auto all = keys();
  return std::find(all.begin(), all.end(), key) != all.end();
}

std::size_t Node::size() const {
  return is_array() ? o_->via.array.size : is_map() ? o_->via.map.size : 0;
}

std::vector<std::string> Node::keys() const {
  std::vector<std::string> all;
  for (u32 i = 0; is_map() && i < o_->via.map.size; ++i) {
    all.push_back(o_->via.map.ptr[i].key.as<std::string>());
  }
  return all;
}

Dump::Dump(const std::string& file_content) {
  std::string raw;
  std::vector<char> chunk(1 << 20);
  ZSTD_DStream* stream = ZSTD_createDStream();
  ZSTD_inBuffer in{file_content.data(), file_content.size(), 0};
  std::size_t rest = 1;
  while (rest != 0) {
    ZSTD_outBuffer out{chunk.data(), chunk.size(), 0};
    rest = ZSTD_decompressStream(stream, &out, &in);
    if (ZSTD_isError(rest) || (out.pos == 0 && in.pos == in.size && rest != 0)) {
      ZSTD_freeDStream(stream);
      throw std::runtime_error("not a whole zstd frame");
    }
    raw.append(chunk.data(), out.pos);
  }
  ZSTD_freeDStream(stream);
  raw_bytes = raw.size();
  std::size_t used = 0;
  handle_ = msgpack::unpack(raw.data(), raw.size(), used);
  if (used != raw.size()) {
    throw std::runtime_error("bytes behind the map");
  }
}

std::size_t Dump::rows(const char* table) const {
  const Node all = (*this)[table]["rows"];
  std::size_t n = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    n += all[i].is_nil() ? 0 : 1;
  }
  return n;
}

Node Dump::cell(const char* table, std::size_t row, const char* field) const {
  const Node fields = (*this)[table]["fields"];
  const Node all = (*this)[table]["rows"];
  std::size_t seen = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].is_nil() || seen++ != row) {
      continue;
    }
    for (std::size_t f = 0; f < fields.size(); ++f) {
      if (fields[f].text() == field) {
        return all[i][f];
      }
    }
    throw std::out_of_range(std::string("no field ") + field);
  }
  throw std::out_of_range("no row " + std::to_string(row));
}

}  // namespace fr::test
