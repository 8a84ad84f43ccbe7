// recorder.hpp - everything one recording process has, in one place. Never freed: threads of the
// host may be inside while it shuts down.
#pragma once

#include <climits>
#include <memory>
#include <string>

#include "format/view.hpp"
#include "record/record.hpp"
#include "recorder/intern_tables.hpp"
#include "recorder/options.hpp"
#include "recorder/region.hpp"
#include "watch/control_page.hpp"
#include "watch/watchdog.hpp"

namespace fr {

struct Recorder {
  Hot hot;
  Options options;
  EnvIdentity env;
  std::string host;
  Region region;
  View view;
  std::unique_ptr<Tables> tables;
  ControlPage control;
  // Where dumps go, in order; fixed so that signal handlers can read them.
  char dump_dirs[2][PATH_MAX];
  u64 first_incident = 0;  // incidents up to this one are an earlier run's
  i32 pid = 0;
  std::atomic<bool> ended{false};  // fr_shutdown has run
  Watchdog watchdog;
};

// The recorder of this process; nullptr before the start, in a forked child, with recording off.
extern std::atomic<Recorder*> g_recorder;
inline Recorder* recorder() noexcept {
  return g_recorder.load(std::memory_order_acquire);
}

// fr_start. off_reason() says why nothing is recorded.
bool start() noexcept;
// As start(), but not in a forked child: only what makes a process a rank starts a recorder there.
bool start_unless_child() noexcept;
const char* off_reason() noexcept;
// Said before the start, used by it: a rank that only the script knows, a writer.
void keep_identity(i32 rank, i32 world_size, i32 local_rank) noexcept;
void keep_writer(fr_writer writer, void* user) noexcept;

// fork.cpp: child processes record nothing until they start their own.
void install_fork_handler() noexcept;
void forget_recorder_in_child() noexcept;

// ends.cpp: signals and exit().
void install_end_handlers(Recorder& r) noexcept;
void check_end_handlers(Recorder& r) noexcept;      // puts ours back on top of later ones
void install_crash_handlers(Recorder& r) noexcept;  // crash.cpp
void shut_down(Recorder& r, int status) noexcept;

// 0 while nothing is recorded.
inline u64 now_ticks() noexcept {
  const Hot* h = hot();
  return h != nullptr ? ticks_now(h->clock) : 0;
}

// Operations in flight over all groups, as the watchdog counts them.
u64 count_in_flight(const GroupRow& row) noexcept;
u64 count_in_flight(const Recorder& r) noexcept;

// native_stack.cpp: C++ frames of the calling thread, innermost first (FR_STACKS=native).
u32 native_frames(Tables& tables, fr_frame* frames, u32 limit) noexcept;
void prepare_native_stacks() noexcept;

}  // namespace fr
