// recorder.cpp - makes the recorder of this process: region, tables, pointers of the record path.
#include "recorder/recorder.hpp"

#include <unistd.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>

#include "format/file_name.hpp"
#include "format/ticks.hpp"
#include "format/version.hpp"
#include "recorder/clock_anchor.hpp"
#include "recorder/fork.hpp"
#include "recorder/identity.hpp"
#include "recorder/log.hpp"
#include "recorder/native_stack.hpp"
#include "recorder/parts.hpp"
#include "recorder/start.hpp"
#include "sample/process.hpp"

namespace fr {

namespace {

std::atomic<u32> g_generation{0};
std::atomic<bool> g_forked_child{false};
std::atomic<i32> g_kept_rank{-1};
std::atomic<i32> g_kept_world_size{0};
std::atomic<i32> g_kept_local_rank{-1};
std::atomic<const char*> g_off_reason{"not started: no process group or note yet"};
// In static storage, so that a forked child can have a fresh one without freeing anything.
// Under the start lock.
char g_kept_store[PATH_MAX];
char g_kept_program[NAME_MAX + 1];
alignas(std::mutex) unsigned char g_start_lock[sizeof(std::mutex)] = {};
std::mutex& start_lock() {
  return *reinterpret_cast<std::mutex*>(g_start_lock);
}
[[maybe_unused]] const bool g_start_lock_made = (new (g_start_lock) std::mutex, true);

void copy(char* to, std::size_t size, const std::string& from) {
  std::snprintf(to, size, "%s", from.c_str());
}

// Sets the identity of this process as far as it is known.
void read_identity_of(Recorder& r) {
  r.env = read_identity();
  if (r.env.rank < 0) {
    r.env.rank = g_kept_rank.load();
  }
  if (r.env.world_size <= 0) {
    r.env.world_size = g_kept_world_size.load();
  }
  if (r.env.local_rank < 0) {
    r.env.local_rank = g_kept_local_rank.load();
  }
  r.host = host_name();
  r.pid = getpid();
}

// All ranks of a node have the same variables as a rule: one of them says what is wrong with names.
void log_complaints(const Recorder& r) {
  const std::string complaints =
      r.options.complaints + (r.env.local_rank <= 0 ? unknown_options(environ) : std::string());
  for (std::size_t at = 0; at < complaints.size();) {
    const std::size_t end = complaints.find('\n', at);
    log_line(kLogWarn, "%s", complaints.substr(at, end - at).c_str());
    at = end + 1;
  }
}

u32 records_wanted(const Options& o) {
  return o.buffer_size < kMinRecords   ? kMinRecords
         : o.buffer_size > kMaxRecords ? kMaxRecords
                                       : std::bit_ceil(o.buffer_size);
}

// False: no memory.
bool make_region(Recorder& r, u32 n_records) {
  char name[kNameBytes];
  format_name(name, sizeof name, r.options.job.c_str(), r.env.attempt, r.env.rank,
              static_cast<u64>(r.pid), "ring");
  r.region = create_region(r.options.shm_dir, name, n_records);
  if (r.region.base == nullptr) {
    return false;
  }
  if (r.region.anonymous) {
    log_line(kLogWarn, "the ring is in anonymous memory and will not survive a SIGKILL: %s",
             r.region.why.c_str());
  }
  return true;
}

void fill_header(Recorder& r) {
  const Options& o = r.options;
  Header& h = r.region.header();
  h.clock_kind = choose_clock();
  h.pid = r.pid;
  h.attempt = r.env.attempt;
  h.start_unix_ns = unix_now_ns();
  h.proc_start = process_start(r.pid);
  if (h.proc_start == 0) {
    log_line(kLogWarn, "%s", kNoProc);
  }
  h.pid_namespace = pid_namespace();
  h.generation = g_generation.load() + 1;
  h.local_world_size = r.env.local_world_size;
  h.rank.store(r.env.rank);
  h.local_rank.store(r.env.local_rank);
  h.world_size.store(r.env.world_size);
  h.step.store(INT64_MIN);
  copy(h.job, sizeof h.job, o.job);
  copy(h.host, sizeof h.host, r.host);
  copy(h.boot_id, sizeof h.boot_id, boot_id());
  copy(h.recorder, sizeof h.recorder, version_text());
  copy(h.command, sizeof h.command, command_line());
  copy(h.cwd, sizeof h.cwd, working_directory());
  copy(h.dump_dir, sizeof h.dump_dir, o.dump_dir);
  copy(r.region.section<char>(kSecOptions), h.sections[kSecOptions].count, o.table);
  take_anchor(h.first, h.clock_kind);
  take_anchor(h.last, h.clock_kind);
  h.magic.store(kRegionMagic, std::memory_order_release);
}

// Fills the state that the record path reads.
void fill_hot(Recorder& r, u32 n_records) {
  Header& h = r.region.header();
  Hot& hot = r.hot;
  hot.header = &h;
  hot.groups = r.region.section<GroupRow>(kSecGroups);
  hot.lanes = r.region.section<LaneRow>(kSecLanes);
  hot.blob = r.region.section<std::atomic<u32>>(kSecBlob);
  hot.crumbs = r.region.section<Crumb>(kSecCrumbs);
  hot.blob_mask = kBlobWords - 1;
  hot.generation = h.generation;
  hot.clock = h.clock_kind;
  hot.stacks = r.options.stacks != Stacks::kOff;
  hot.native_stacks = r.options.stacks == Stacks::kNative;
  hot.ring.head = &h.head;
  hot.ring.skipped = &h.skipped;
  hot.ring.records = r.region.section<Record>(kSecRecords);
  hot.ring.status = r.region.section<Status>(kSecStatus);
  hot.ring.groups = hot.groups;
  hot.ring.mask = n_records - 1;
  hot.ring.quota.store(kQuietQuota < n_records / 4 ? kQuietQuota : n_records / 4);
}

Recorder* make_recorder() {
  auto* r = new Recorder;
  r->options = read_options(
      {g_kept_store, g_kept_program[0] != '\0' ? g_kept_program : program_name(), launcher_pid()});
  const Options& o = r->options;
  read_identity_of(*r);
  set_log(o.log_level, r->host.c_str());
  set_log_rank(r->env.rank);
  log_complaints(*r);
  if (!o.enable || o.buffer_size == 0) {
    g_off_reason.store(!o.enable ? "FR_ENABLE=0" : "FR_BUFFER_SIZE=0");
    delete r;
    return nullptr;
  }
  const u32 n_records = records_wanted(o);
  if (!make_region(*r, n_records)) {
    log_line(kLogError, "no memory for the ring: nothing is recorded");
    g_off_reason.store("no memory for the ring");
    delete r;
    return nullptr;
  }
  fill_header(*r);
  r->view = View::of(r->region.base, r->region.bytes);
  r->tables = std::make_unique<Tables>(r->region);
  copy(r->dump_dirs[0], sizeof r->dump_dirs[0], o.dump_dir);
  copy(r->dump_dirs[1], sizeof r->dump_dirs[1],
       o.temporary_dir + "/fr-dumps-" + std::to_string(geteuid()) + "/" + o.job);
  fill_hot(*r, n_records);
  for_each_part(&Part::make, *r);
  return r;
}

}  // namespace

const char* off_reason() noexcept {
  return g_off_reason.load();
}

void forget_recorder_in_child() noexcept {
  new (g_start_lock) std::mutex;
  g_forked_child.store(true);
  g_kept_rank.store(-1);  // the parent's; a child that becomes a rank is another one
  g_kept_local_rank.store(-1);
  g_kept_store[0] = '\0';
  g_off_reason.store("forked child: not a rank");
}

void keep_identity(i32 rank, i32 world_size, i32 local_rank) noexcept {
  if (rank >= 0) {
    g_kept_rank.store(rank);
  }
  if (world_size > 0) {
    g_kept_world_size.store(world_size);
  }
  if (local_rank >= 0) {
    g_kept_local_rank.store(local_rank);
  }
}

void keep_job(const char* store, const char* program) noexcept {
  const std::lock_guard lock(start_lock());
  if (store != nullptr && *store != '\0') {
    std::snprintf(g_kept_store, sizeof g_kept_store, "%s", store);
  }
  if (program != nullptr && *program != '\0') {
    std::snprintf(g_kept_program, sizeof g_kept_program, "%s", program);
  }
}

bool start_unless_child() noexcept {
  return recorder() == nullptr && g_forked_child.load() ? false : start();
}

bool start() noexcept {
  if (recorder() != nullptr) {
    return hot() != nullptr;
  }
  try {
    const std::lock_guard lock(start_lock());
    if (recorder() != nullptr) {
      return true;
    }
    Recorder* r = make_recorder();
    if (r == nullptr) {
      return false;
    }
    if (r->options.stacks == Stacks::kNative) {
      prepare_native_stacks();
    }
    install_fork_handler();
    g_generation.store(r->hot.generation);
    g_recorder.store(r, std::memory_order_release);
    g_hot.store(&r->hot, std::memory_order_release);
    for_each_part(&Part::start, *r);
    return true;
  } catch (...) {
    g_off_reason.store("no memory");
    return false;
  }
}

}  // namespace fr
