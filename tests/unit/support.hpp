// support.hpp - what the tests share: temporary directories, a recorder without a process around it
// (Rig), child processes with options of their own (Scene), and a reader of dump files.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <msgpack.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "format/view.hpp"
#include "fr/fr.h"
#include "record/record.hpp"
#include "recorder/intern_tables.hpp"
#include "recorder/region.hpp"
#include "sample/map_file.hpp"

namespace fr::test {

// ---------------------------------------------------------------- files

// A directory that goes with its object, contents included.
class TempDir {
 public:
  explicit TempDir(const char* below = "/tmp");
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::string> list(const std::string& dir);  // names, sorted; empty when it is not there
std::vector<std::string> list_ending(const std::string& dir, const std::string& ending);
bool exists(const std::string& path);
std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& content);

// Looks every millisecond until it holds; false when it never does within the time.
bool eventually(const std::function<bool()>& holds, double seconds = 30);

// Allocations of the calling thread since the start.
u64 allocations();

// ---------------------------------------------------------------- a recorder without a process

fr_op make_op(fr_group_t group, u16 kind = FR_COLLECTIVE, u32 op = 0);

// Region, tables and hot pointers as recorder.cpp wires them, without watchdog and handlers.
struct Rig {
  explicit Rig(u32 n_records = 1024);
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  u32 group(const char* name, const std::vector<i32>& ranks = {0, 1});
  u32 intern(const char* text) {
    return tables->intern(text, std::char_traits<char>::length(text));
  }
  fr_ticket begin(const fr_op& op);
  fr_ticket collective(u32 group) { return begin(make_op(group)); }
  GroupRow& row(u32 group) { return hot.groups[group]; }
  Header& header() { return region.header(); }
  // The copy of a ticket's record; fails the test when it is not in the ring.
  RecordCopy read(const fr_ticket& ticket);
  std::vector<RecordCopy> read_all();

  TempDir dir{"/dev/shm"};
  Region region;
  View view;
  std::unique_ptr<Tables> tables;
  Hot hot;
};

// ---------------------------------------------------------------- processes

struct Ending {
  bool exited = false;
  int status = -1;  // exit status
  int signal = 0;   // signal it died of
};

class Child {
 public:
  explicit Child(pid_t process) : pid_(process) {}
  ~Child();  // kills and reaps the process if it still runs
  Child(Child&& other) noexcept : pid_(other.pid_), ended_(other.ended_) { other.pid_ = -1; }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  void kill(int signal) const;       // SIGSTOP: returns when it has stopped
  Ending wait(double seconds = 60);  // fails the test when it does not end

 private:
  pid_t pid_;
  bool ended_ = false;
};

// Memory shared by the test and its children.
struct Board {
  std::atomic<u64> cell[64];
  char text[4096];
};

using Environment = std::map<std::string, std::string>;

// Ring and dump directories of one test, and children that record there.
class Scene {
 public:
  Scene();
  ~Scene();
  // Forks a process that is this rank; it ends with exit(body()). Its stderr is kept.
  Child start(int rank, const Environment& options, const std::function<int()>& body,
              int world_size = 1);
  std::string log(int rank) const {
    return read_file(home.path() + "/stderr." + std::to_string(rank));
  }
  std::string ring_dir() const;
  std::vector<std::string> rings() const { return list_ending(ring_dir(), ".ring"); }
  std::vector<std::string> dumps() const { return list_ending(dump_dir, ".fr"); }
  std::vector<std::string> ring_copies() const { return list_ending(dump_dir, ".ring"); }
  std::string dump_path(int rank, int incident) const;
  // Waits until the board's cell is at least that.
  bool reached(int cell, u64 value, double seconds = 30) const;

  TempDir shm{"/dev/shm"};
  TempDir home{"/dev/shm"};  // on a disk, fsync may hold a dying process for a minute
  std::string dump_dir = home.path() + "/dumps";
  std::string tmp = home.path() + "/tmp";
  Board& board;
};

// In children: a group of two ranks, an operation.
fr_group_t child_group(const char* name = "0", int own_rank = 0, int n_ranks = 2);
fr_ticket child_begin(fr_group_t group, const char* op = "all_reduce", u16 flags = 0);
[[noreturn]] void sleep_for_ever();

// A ring file, mapped for reading while the object lives.
class RingFile {
 public:
  explicit RingFile(const std::string& path);
  ~RingFile();
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;
  const View& view() const { return view_; }

 private:
  Mapping mapping_;
  View view_;
};

// ---------------------------------------------------------------- dumps

// A value of a dump; looking up a missing key throws.
class Node {
 public:
  explicit Node(const msgpack::object& o) : o_(&o) {}
  Node operator[](std::string_view key) const;
  Node operator[](std::integral auto index) const { return at(static_cast<std::size_t>(index)); }
  bool has(const char* key) const;
  std::size_t size() const;
  bool is_nil() const { return o_->type == msgpack::type::NIL; }
  bool is_map() const { return o_->type == msgpack::type::MAP; }
  bool is_array() const { return o_->type == msgpack::type::ARRAY; }
  bool is_int() const {
    return o_->type == msgpack::type::POSITIVE_INTEGER ||
           o_->type == msgpack::type::NEGATIVE_INTEGER;
  }
  bool is_text() const { return o_->type == msgpack::type::STR; }
  i64 integer() const { return o_->as<i64>(); }
  u64 natural() const { return o_->as<u64>(); }
  std::string text() const { return o_->as<std::string>(); }
  std::vector<std::string> keys() const;

 private:
  Node at(std::size_t index) const;
  const msgpack::object* o_;
};

class Dump {
 public:
  explicit Dump(const std::string& file_content);
  static Dump load(const std::string& path) { return Dump(read_file(path)); }
  Node root() const { return Node(handle_.get()); }
  Node operator[](const char* key) const { return root()[key]; }
  // Rows of a table that are not nil.
  std::size_t rows(const char* table) const;
  Node cell(const char* table, std::size_t row, const char* field) const;
  std::string string(const Node& id) const { return (*this)["strings"][id.natural()].text(); }
  std::size_t raw_bytes = 0;  // uncompressed

 private:
  msgpack::object_handle handle_;
};

}  // namespace fr::test
