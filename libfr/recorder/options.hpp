// options.hpp - the one table of options, and the only reader of the environment.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "format/layout.hpp"

namespace fr {

struct OptionSpec {
  const char* name;
  const char* aliases[4];  // PyTorch's names, honoured when `name` is not set
  const char* default_text;
  const char* meaning;
};

std::span<const OptionSpec> option_table() noexcept;

enum class Stacks { kOff, kPython, kNative };
enum class ThreadLooks { kOff, kProc, kSignal };
enum class Timing { kOff, kAuto, kEvents };

// Values in force. Texts are as they are shown; paths are absolute.
struct Options {
  bool enable = true;
  u32 buffer_size = 16384;  // records, as asked for; 0 = off
  bool dump_on_timeout = true;
  u64 warn_ns = 0;
  u64 timeout_ns = 0;
  std::string dump_dir;
  u32 keep_dumps = 4;
  std::string shm_dir;
  std::string job;
  Stacks stacks = Stacks::kPython;
  Timing timing = Timing::kAuto;
  ThreadLooks threads = ThreadLooks::kSignal;
  bool locals = true;   // variables of the frames of hung threads
  bool crashes = true;  // handlers of SIGSEGV and its like
  std::string ras;      // address of NCCL's RAS service, "" not asked
  std::string pipe;     // "" none
  int signal = 0;       // 0 none
  std::string cache_dir;
  int log_level = 1;  // -1 off, 0 error, 1 warn, 2 info, 3 debug

  std::string temporary_dir;  // TMPDIR or /tmp: where dumps go when dump_dir cannot be written

  // "NAME=value\tsource\n" per row of the table; source is "default" or the variable that set it.
  std::string table;
  // One line per value that did not parse: name, value, what is used instead.
  std::string complaints;

  // The value in force as text; "" for a name not in the table.
  std::string value(std::string_view name) const;
};

// Returns the value of an environment variable or nullptr.
using Lookup = std::function<const char*(const char*)>;

Options read_options(const Lookup& lookup);
Options read_options();  // from the environment

// Who this process is, as far as the environment tells (torchrun, Slurm, MPI).
struct EnvIdentity {
  i32 rank = -1;
  i32 local_rank = -1;
  i32 world_size = 0;
  i32 local_world_size = 0;
  i32 attempt = 0;
};
EnvIdentity read_identity(const Lookup& lookup);
EnvIdentity read_identity();

}  // namespace fr
