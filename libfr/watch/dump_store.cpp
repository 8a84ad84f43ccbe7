// dump_store.cpp - stores dumps and removes old ones. No allocation, no lock.
#include "watch/dump_store.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <iterator>

#include "format/file_name.hpp"
#include "format/system_names.hpp"
#include "format/text.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/directory.hpp"

namespace fr {

namespace {

// ".<job>.<...>.tmp" of a process that died while it wrote; which one cannot be told on a file system
// of several nodes, so only by its age.
bool remove_stale(const char* dir, const char* name, const char* job) noexcept {
  constexpr i64 kMaxAge_s = 3600;  // nobody writes one file for so long
  constexpr char kEnding[] = ".tmp";
  const std::size_t n = std::strlen(name), of_job = std::strlen(job);
  if (name[0] != '.' || n < of_job + sizeof kEnding || std::strncmp(name + 1, job, of_job) != 0 ||
      name[1 + of_job] != '.' || std::strcmp(name + n - (sizeof kEnding - 1), kEnding) != 0) {
    return false;
  }
  char path[PATH_MAX];
  format(path, sizeof path, "%s/%s", dir, name);
  struct stat st;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && now.tv_sec - st.st_mtim.tv_sec > kMaxAge_s) {
    unlink(path);
  }
  return true;
}

struct stat root_directory() noexcept {
  struct stat st{};
  stat("/", &st);
  return st;
}

}  // namespace

DumpStore::DumpStore(const Recorder& recorder) noexcept
    : recorder_(recorder), root_(root_directory()) {}

bool DumpStore::is_seen_by_peers() const noexcept {
  const struct stat now = root_directory();
  return has_sink() || (now.st_dev == root_.st_dev && now.st_ino == root_.st_ino);
}

void DumpStore::set_sink(fr_sink sink, void* user) noexcept {
  sink_user_.store(user);
  sink_.store(sink);
}

bool DumpStore::store(const char* name, const DumpEncoder::Bytes& bytes,
                      Existing existing) noexcept {
  const bool ok = store_anywhere(name, bytes, existing);
  tell();
  return ok;
}

void DumpStore::tell() noexcept {
  told_revisions_.fetch_add(1);
  for (std::size_t i = 0; i < sizeof last_path_; ++i) {
    told_path_[i].store(last_path_[i], std::memory_order_relaxed);
    if (last_path_[i] == '\0') {
      break;
    }
  }
  told_revisions_.fetch_add(1, std::memory_order_release);
}

void DumpStore::last_path(Path& out) const noexcept {
  const u32 before = told_revisions_.load(std::memory_order_acquire);
  std::size_t i = 0;
  do {
    out[i] = told_path_[i].load(std::memory_order_acquire);
  } while (out[i++] != '\0' && i < sizeof out);
  out[sizeof out - 1] = '\0';
  if (before % 2 != 0 || told_revisions_.load() != before) {
    out[0] = '\0';
  }
}

bool DumpStore::store_anywhere(const char* name, const DumpEncoder::Bytes& bytes,
                               Existing existing) noexcept {
  if (const fr_sink sink = sink_.load()) {
    format(last_path_, sizeof last_path_, "%s", name);
    return sink(name, bytes.data, bytes.size, sink_user_.load()) == 0;
  }
  int error = 0;
  for (const auto& dir : recorder_.dump_dirs) {
    if (dir[0] == '\0') {
      continue;
    }
    const bool fallback = &dir == &recorder_.dump_dirs[1];
    if ((!fallback || make_private_parent(dir)) &&
        write_durably(dir, name, bytes.data, bytes.size, last_path_, sizeof last_path_, existing)) {
      if (fallback && !unwritable_said_) {
        unwritable_said_ = true;
        log_line(kLogError, "cannot write dumps to %s: %s; they go to %s", recorder_.dump_dirs[0],
                 error_text(error), dir);
      }
      return true;
    }
    if (existing == Existing::kKeep && errno == EEXIST) {
      return false;
    }
    error = error == 0 ? errno : error;
  }
  last_path_[0] = '\0';
  if (!unwritable_said_) {
    unwritable_said_ = true;
    log_line(kLogError,
             "cannot write dumps, neither to %s nor to %s: %s; frtrace reads the ring in %s",
             recorder_.dump_dirs[0], recorder_.dump_dirs[1], error_text(error),
             recorder_.region.dir.c_str());
  }
  return false;
}

// Keeps the first incident of this run and the last ones.
void DumpStore::prune() noexcept {
  const Recorder& r = recorder_;
  const Header& h = r.region.header();
  struct Context {
    const Header& header;
    u64 first_incident;
    i32 rank;
    u64 numbers[256];
    u32 n;
    NameParts::Beside beside[256];
    bool fr[256];
    const char* dir;
  } c{h, r.first_incident, h.rank.load(), {}, 0, {}, {}, nullptr};
  // the first and the newest are always kept
  const u32 newest = r.options.keep_dumps > 2 ? r.options.keep_dumps - 1 : 1;
  if (sink_.load() != nullptr) {
    return;
  }
  char dir[PATH_MAX];
  format(dir, sizeof dir, "%s", last_path_);
  char* slash = std::strrchr(dir, '/');
  if (slash == nullptr) {
    return;
  }
  *slash = '\0';
  c.dir = dir;
  each_entry(
      dir,
      [](const char* name, void* context) {
        auto& x = *static_cast<Context*>(context);
        NameParts parts;
        if (remove_stale(x.dir, name, x.header.job)) {
          return;
        }
        if (parse_name(name, parts) && std::strcmp(parts.job, x.header.job) == 0 &&
            parts.attempt == x.header.attempt && parts.rank == x.rank &&
            (parts.pid == 0 || parts.pid == x.header.pid) && parts.number > x.first_incident &&
            x.n < std::size(x.numbers)) {
          x.numbers[x.n] = parts.number;
          x.beside[x.n] = parts.beside;
          x.fr[x.n++] = parts.is_fr;
        }
      },
      &c);
  u64 first = ~0ull;
  for (u32 i = 0; i < c.n; ++i) {
    first = c.numbers[i] < first ? c.numbers[i] : first;
  }
  for (u32 i = 0; i < c.n; ++i) {
    u32 newer = 0;
    for (u32 k = 0; k < c.n; ++k) {
      newer +=
          c.numbers[k] > c.numbers[i] && c.fr[k] && c.beside[k] == NameParts::Beside::kNone ? 1 : 0;
    }
    if (c.numbers[i] != first && newer >= newest) {
      char name[kNameBytes];
      char path[PATH_MAX];
      format_dump_name(name, sizeof name, h, c.numbers[i], c.beside[i], c.fr[i]);
      format(path, sizeof path, "%s/%s", dir, name);
      unlink(path);
    }
  }
}

}  // namespace fr
