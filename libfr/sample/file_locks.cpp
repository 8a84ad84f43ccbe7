// file_locks.cpp - reads /proc/locks, and finds the names of files that are locked.
#include "sample/file_locks.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "format/text.hpp"
#include "sample/directory.hpp"
#include "sample/process.hpp"
#include "sample/small_file.hpp"

namespace fr {
namespace {

constexpr u32 kListBytes = 1 << 20;  // of /proc/locks that are read, some 16,000 locks
constexpr u32 kDescriptors = 4096;   // of a process that are looked at for the file of a lock
constexpr u32 kOthers = 16 * 1024;   // of all processes that are looked at for a holder

// The word that `at` is at; `at` goes behind it.
std::size_t take_word(const char*& at, char* to, std::size_t size) noexcept {
  while (*at == ' ') {
    ++at;
  }
  std::size_t n = 0;
  for (; *at != ' ' && *at != '\0'; ++at) {
    if (n + 1 < size) {
      to[n++] = *at;
    }
  }
  to[n] = '\0';
  return n;
}

u64 decimal(const char* text) noexcept {
  u64 value = 0;
  for (; *text >= '0' && *text <= '9'; ++text) {
    value = value * 10 + static_cast<u64>(*text - '0');
  }
  return value;
}

void add(i32 pid, const LockLine& line, const LockLine& held, ThreadReport& to) noexcept {
  if (line.pid != pid) {
    return;
  }
  if (to.n_locks == ThreadReport::kLocks) {
    ++to.locks_lost;
    return;
  }
  LockRow& row = to.locks[to.n_locks++];
  row = {};
  row.waits = line.waits;
  row.inode = line.inode;
  std::memcpy(row.kind, line.kind, sizeof row.kind);
  row.holder = line.waits ? held.pid : pid;
  if (row.holder > 0) {
    process_name(row.holder, row.holder_name, sizeof row.holder_name);
  }
}

struct Search {
  i32 pid;
  ThreadReport* to;
  u32 left;
};

// The inode of an open file, as its descriptor says since Linux 5.14. The file itself is not looked
// at: its file system may hang.
u64 inode_of(i32 pid, const char* descriptor) noexcept {
  char path[64];
  char text[256];
  format(path, sizeof path, "/proc/%d/fdinfo/%s", pid, descriptor);
  read_small_file(path, text, sizeof text);
  const char* at = std::strstr(text, "\nino:\t");
  return at != nullptr ? decimal(at + 6) : 0;
}

// ---- locks of open file descriptions (F_OFD_SETLKW), for which /proc/locks names no process: one
// that has such a description says so in its fdinfo.

struct HolderSearch {
  i32 self;
  u64 inode;
  i32 pid;  // process of the descriptors that are looked at
  i32 found;
  u32 left;
};

void look_at_descriptor(const char* descriptor, void* context) noexcept {
  HolderSearch& s = *static_cast<HolderSearch*>(context);
  if (s.found != 0 || s.left == 0) {
    return;
  }
  --s.left;
  char path[64];
  char text[1024];
  format(path, sizeof path, "/proc/%d/fdinfo/%s", s.pid, descriptor);
  read_small_file(path, text, sizeof text);
  for (char* at = std::strstr(text, "\nlock:\t"); at != nullptr;) {
    char* end = std::strchr(at + 1, '\n');
    if (end != nullptr) {
      *end = '\0';
    }
    LockLine line{};
    if (parse_lock_line(at + 7, line) && line.inode == s.inode && line.pid < 0) {
      s.found = s.pid;
    }
    if (end != nullptr) {
      *end = '\n';
    }
    at = end != nullptr ? std::strstr(end, "\nlock:\t") : nullptr;
  }
}

void look_at_process(const char* name, void* context) noexcept {
  HolderSearch& s = *static_cast<HolderSearch*>(context);
  s.pid = static_cast<i32>(decimal(name));
  if (s.pid <= 0 || s.pid == s.self || s.found != 0) {
    return;
  }
  char path[48];
  format(path, sizeof path, "/proc/%d/fdinfo", s.pid);
  each_entry(path, look_at_descriptor, context);
}

void add_description_locks(i32 pid, ThreadReport& to) noexcept {
  for (u32 i = 0; i < to.n_threads && to.n_locks < ThreadReport::kLocks; ++i) {
    const Task& t = to.threads[i].task;
    if (t.syscall != SYS_fcntl || t.args[1] != F_OFD_SETLKW) {
      continue;
    }
    char descriptor[16];
    format(descriptor, sizeof descriptor, "%d", static_cast<int>(t.args[0]));
    HolderSearch search{pid, inode_of(pid, descriptor), 0, 0, kOthers};
    if (search.inode != 0) {
      each_entry("/proc", look_at_process, &search);
      LockLine line{true, "OFDLCK", pid, search.inode};
      add(pid, line, {false, "", search.found != 0 ? search.found : -1, search.inode}, to);
    }
  }
}

void name_file(const char* descriptor, void* context) noexcept {
  Search& s = *static_cast<Search*>(context);
  if (s.left == 0) {
    return;
  }
  --s.left;
  const u64 inode = inode_of(s.pid, descriptor);
  for (u32 i = 0; inode != 0 && i < s.to->n_locks; ++i) {
    LockRow& row = s.to->locks[i];
    if (row.inode != inode || row.file[0] != '\0') {
      continue;
    }
    char path[64];
    format(path, sizeof path, "/proc/%d/fd/%s", s.pid, descriptor);
    const ssize_t n = readlink(path, row.file, sizeof row.file - 1);
    row.file[n > 0 ? n : 0] = '\0';
  }
}

}  // namespace

bool parse_lock_line(const char* line, LockLine& to) noexcept {
  char word[32];
  take_word(line, word, sizeof word);  // the number of the lock
  if (take_word(line, word, sizeof word) == 0) {
    return false;
  }
  to.waits = std::strcmp(word, "->") == 0;
  if (to.waits) {
    take_word(line, word, sizeof word);
  }
  format(to.kind, sizeof to.kind, "%s", word);
  take_word(line, word, sizeof word);  // ADVISORY
  take_word(line, word, sizeof word);  // WRITE
  take_word(line, word, sizeof word);
  to.pid = word[0] == '-' ? -1 : static_cast<i32>(decimal(word));
  take_word(line, word, sizeof word);  // device:inode
  const char* colon = std::strrchr(word, ':');
  to.inode = colon != nullptr ? decimal(colon + 1) : 0;
  return to.pid != 0 && to.inode != 0;
}

void sample_file_locks(i32 pid, ThreadReport& to) noexcept {
  to.n_locks = to.locks_lost = 0;
  const int fd = open("/proc/locks", O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return;
  }
  char text[4096];
  std::size_t used = 0;
  LockLine held{};
  u32 total = 0;
  for (ssize_t n = 0; total < kListBytes; total += static_cast<u32>(n)) {
    n = read(fd, text + used, sizeof text - 1 - used);
    if (n <= 0) {
      break;
    }
    used += static_cast<std::size_t>(n);
    text[used] = '\0';
    const char* from = text;
    for (char* end = std::strchr(text, '\n'); end != nullptr; end = std::strchr(end, '\n')) {
      *end++ = '\0';
      if (LockLine line{}; parse_lock_line(from, line)) {
        held = line.waits ? held : line;
        add(pid, line, held, to);
      }
      from = end;
    }
    used -= static_cast<std::size_t>(from - text);
    std::memmove(text, from, used);
    used = used + 1 == sizeof text ? 0 : used;  // no line is that long
  }
  close(fd);
  add_description_locks(pid, to);
  if (to.n_locks != 0) {
    char path[48];
    format(path, sizeof path, "/proc/%d/fd", pid);
    Search search{pid, &to, kDescriptors};
    each_entry(path, [](const char* name, void* context) { name_file(name, context); }, &search);
  }
}

}  // namespace fr
