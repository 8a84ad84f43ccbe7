// recorder.hpp - what one recording process has. Never freed: threads of the host may be inside
// while it shuts down.
#pragma once

#include <climits>
#include <memory>
#include <string>

#include "format/view.hpp"
#include "recorder/current.hpp"
#include "recorder/intern_tables.hpp"
#include "recorder/options.hpp"
#include "recorder/region.hpp"

namespace fr {

class ControlPage;
class Watchdog;

inline constexpr char kNoProc[] =
    "/proc cannot be read: dumps have no threads and no native stacks, and whether a rank lives is "
    "told by its pid alone";

struct Recorder {
  Hot hot;
  Options options;
  EnvIdentity env;
  std::string host;
  Region region;
  View view;
  std::unique_ptr<Tables> tables;
  // Where dumps go, in order; fixed so that signal handlers can read them.
  char dump_dirs[2][PATH_MAX];
  u64 first_incident = 0;  // incidents up to this one are an earlier run's
  i32 pid = 0;
  std::atomic<bool> ended{false};  // fr_shutdown has run
  // Where the process asked to end, and the next ticket then.
  std::atomic<u32> exit_stack{0};
  std::atomic<u64> exit_head{0};
  // The parts of watch/, made before recorder() gives this struct out.
  ControlPage* control = nullptr;
  Watchdog* watchdog = nullptr;
};

}  // namespace fr
