// dump_store.cpp - stores dumps and removes old ones. No allocation, no lock.
#include "watch/dump_store.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "format/file_name.hpp"
#include "format/text.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/directory.hpp"

namespace fr {

void DumpStore::set_sink(fr_sink sink, void* user) noexcept {
  sink_user_.store(user);
  sink_.store(sink);
}

bool DumpStore::store(const char* name, const DumpEncoder::Bytes& bytes,
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
    if (write_durably(dir, name, bytes.data, bytes.size, last_path_, sizeof last_path_, existing)) {
      if (&dir != &recorder_.dump_dirs[0] && !unwritable_said_) {
        unwritable_said_ = true;
        log_line(kLogError, "cannot write dumps to %s: %s; they go to %s", recorder_.dump_dirs[0],
                 strerrordesc_np(error), dir);
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
    log_line(kLogError, "cannot write dumps, neither to %s nor to %s: %s", recorder_.dump_dirs[0],
             recorder_.dump_dirs[1], strerrordesc_np(error));
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
  } c{h, r.first_incident, h.rank.load(), {}, 0, {}, {}};
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
  each_entry(
      dir,
      [](const char* name, void* context) {
        auto& x = *static_cast<Context*>(context);
        NameParts parts;
        if (parse_name(name, parts) && std::strcmp(parts.job, x.header.job) == 0 &&
            parts.attempt == x.header.attempt && parts.rank == x.rank &&
            parts.number > x.first_incident && x.n < std::size(x.numbers)) {
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
