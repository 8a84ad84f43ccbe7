// watch.cpp - makes the parts of watch/ when a recorder starts.
#include "watch/watch.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "format/file_name.hpp"
#include "format/text.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/directory.hpp"
#include "sample/map_file.hpp"
#include "sample/process.hpp"
#include "sample/thread_sampler.hpp"
#include "watch/control_page.hpp"
#include "watch/watchdog.hpp"

namespace fr {
namespace {

// Incidents that FR_DUMP_DIR and left rings already have under this job and attempt:
// ours come after.
u64 newest_incident(const char* dir, const std::string& job, i32 attempt, bool rings) {
  struct Context {
    const char* dir;
    const std::string& job;
    i32 attempt;
    bool rings;
    u64 newest;
    u8 left[kPeers];  // rings, per rank
  } c{dir, job, attempt, rings, 0, {}};
  each_entry(
      dir,
      [](const char* name, void* context) {
        auto& x = *static_cast<Context*>(context);
        NameParts parts;
        if (!parse_name(name, parts) || x.job != parts.job || parts.attempt != x.attempt) {
          return;
        }
        u64 number = parts.number <= kMostIncident ? parts.number : 0;
        if (x.rings) {
          char path[PATH_MAX];
          format(path, sizeof path, "%s/%s", x.dir, name);
          Mapping m = map_file(path);
          const View view = View::of(m.base, m.bytes);
          number = view.ok() && !is_alive(view.header().pid, view.header().proc_start)
                       ? view.header().incident.load() + 1
                       : 0;
          // Several that one rank left of one incident get numbers one after the other.
          if (number != 0) {
            number += x.left[static_cast<u32>(parts.rank) % kPeers]++;
          }
          unmap_file(m);
        }
        x.newest = number > x.newest ? number : x.newest;
      },
      &c);
  return c.newest;
}

void note_dump_request(int signal, u64 what) noexcept {
  Recorder* r = recorder();
  if (r != nullptr && r->pid == getpid()) {
    what == kStacksRequest ? r->watchdog->note_stacks_request() : r->watchdog->note_signal(signal);
  }
}

// frtrace is installed as a command of the Python that this library is a package of; else on PATH.
std::string find_frtrace() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&note_dump_request), &here) != 0 &&
      here.dli_fname != nullptr) {
    const std::string file = here.dli_fname;
    const std::string package = file.substr(0, file.rfind('/') + 1);
    for (const char* bin : {"../../../../bin/", "../bin/"}) {  // lib/pythonX.Y/...; pip --target
      const std::string path = package + bin + "frtrace";
      if (!package.empty() && access(path.c_str(), X_OK) == 0) {
        return path;
      }
    }
  }
  const char* directories = std::getenv("PATH");
  for (std::string_view rest = directories != nullptr ? directories : ""; !rest.empty();) {
    const std::size_t end = rest.find(':');
    const std::string path = std::string(rest.substr(0, end)) + "/frtrace";
    if (path.front() == '/' && access(path.c_str(), X_OK) == 0) {
      return path;
    }
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  return "";
}

}  // namespace

void VerdictThread::prepare(const Recorder& recorder) {
  recorder_ = &recorder;
  const char* error_file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (error_file != nullptr && std::strlen(error_file) < sizeof error_file_) {
    std::strcpy(error_file_, error_file);
  }
  const std::string frtrace = recorder.options.verdict ? find_frtrace() : "";
  if (frtrace.size() < sizeof frtrace_) {
    std::strcpy(frtrace_, frtrace.c_str());
  }
  // Variables that the program may need; not LD_PRELOAD, which would start a recorder in it.
  const char** to = environment_;
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "TZ", "LANG", "LC_ALL"}) {
    if (const char* value = std::getenv(name)) {
      *to++ = strdup((std::string(name) + "=" + value).c_str());
    }
  }
  *to = "FR_ENABLE=0";
}

void make_watch(Recorder& r) {
  const Options& o = r.options;
  Header& h = r.region.header();
  r.control = new ControlPage;
  const u64 in_dumps = newest_incident(r.dump_dirs[0], o.job, r.env.attempt, false);
  const u64 in_rings =
      r.region.dir.empty() ? 0 : newest_incident(r.region.dir.c_str(), o.job, r.env.attempt, true);
  r.control->open(r.region.dir, o.job, r.env.attempt, in_dumps > in_rings ? in_dumps : in_rings);
  r.control->join(r.pid, h.proc_start, r.env.rank, r.env.local_rank, r.region.name.c_str());
  r.first_incident = r.control->page().incident.load();
  h.incident.store(r.first_incident);
  r.watchdog = new Watchdog(r);
  r.watchdog->verdict().prepare(r);
  r.watchdog->set_floors({o.warn_ns, o.timeout_ns, o.source("FR_WARN_S") != "default",
                          o.source("FR_TIMEOUT_S") != "default", o.adapt});
  r.watchdog->deadlines().open(r);
}

void start_watch(Recorder& r) noexcept {
  on_dump_request(note_dump_request);
  if (!r.watchdog->start()) {
    log_line(kLogError, "no watchdog thread: the ring is kept, dumps are not written");
  }
  r.watchdog->deadlines().start();
}

}  // namespace fr
