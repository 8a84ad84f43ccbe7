// options.hpp - the one table of options (FR_*), and the only reader of the environment for them.
//
// Each row of the table declares an option once: names, default, kind, member and meaning. The
// parser loops over the rows; the recorder, the Python package, LD_PRELOAD and frtrace all ask
// here, so they cannot disagree about a value.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "format/layout.hpp"

namespace fr {

enum class Stacks { kOff, kPython, kNative };
enum class ThreadSampling { kOff, kProc, kSignal };
enum class Timing { kOff, kAuto, kEvents };
enum class ToNodes { kAuto, kDirectory, kOff };  // how incidents reach other nodes

// Traits that tell apart jobs that no launcher names; "" is unknown.
struct JobTraits {
  std::string store;     // where the ranks meet: host:port or a path
  std::string program;   // base name
  std::string launcher;  // the process that started the ranks of this node
};
// The name that they give: ranks of one job have the same traits, unrelated jobs have others.
std::string unnamed_job(const JobTraits& traits);

// Values in force; read_options() sets every member. Texts are as they are shown;
// paths are absolute.
struct Options {
  bool enable;
  u32 buffer_size;  // records per rank before rounding; 0 = off
  bool dump_on_timeout;
  u64 warn_ns;
  u64 timeout_ns;
  bool adapt;             // deadlines learn
  std::string deadlines;  // file that keeps what was learned; "" none
  std::string dump_dir;
  u32 keep_dumps;
  bool verdict;  // frtrace runs after an incident
  ToNodes trigger;
  u32 fingerprint;  // one of so many operations; 0 = none
  bool mismatch;    // ranks that issue different operations are told of while the job runs
  std::string shm_dir;
  std::string job;
  Stacks stacks;
  Timing timing;
  ThreadSampling threads;
  bool attach;      // `frtrace attach` may look into this process
  bool locals;      // variables of the frames of hung threads
  bool crashes;     // handlers of SIGSEGV and its like
  std::string ras;  // address of NCCL's RAS service; "" = RAS is not queried
  std::string pipe;
  int signal;  // 0 = none
  std::string cache_dir;
  int log_level;  // -1 = off, else enum LogLevel

  JobTraits traits;  // as given to read_options()

  std::string temporary_dir;  // TMPDIR or /tmp: where dumps go when dump_dir cannot be written

  // "NAME=value\tsource\n" per row of the table; source is "default" or the variable that set it.
  std::string table;
  // One line per value that did not parse: name, value, what is understood, what is used instead.
  std::string complaints;

  // The value in force as text, and the variable it comes from; "" for a name not in the table.
  std::string value(std::string_view name) const;
  std::string source(std::string_view name) const;
};

// Returns the value of a variable or nullptr.
using Lookup = std::function<const char*(const char*)>;

enum class OptionKind {
  kBool,       // 1 true t yes y on, 0 false f no n off, in any case
  kCount,      // an integer from 0
  kSeconds,    // more than 0, fractions too; the member holds nanoseconds
  kWord,       // one of OptionSpec::words, in any case
  kDirectory,  // made absolute; of a PyTorch name (a prefix of files) the directory part
  kJob,        // made safe for file names
  kAddress,    // host:port, or a bool: 0 is no address
  kSignal,     // name with or without SIG, or number; empty is none
  kText
};

struct OptionSpec {
  const char* name;
  const char* aliases[2];    // PyTorch's names, honoured when `name` is not set
  const char* default_text;  // parsed like any value, but where `find_default` is given
  OptionKind kind;
  std::variant<bool Options::*, u32 Options::*, u64 Options::*, int Options::*, Stacks Options::*,
               Timing Options::*, ThreadSampling Options::*, ToNodes Options::*,
               std::string Options::*>
      member;
  const char* meaning;
  const char* words[5] = {};        // kWord: the first is the member's value `first_word`
  int first_word = 0;               //
  const char* alias_words[2] = {};  // what 0 and 1 mean where the alias is a bool
  // The default that depends on other variables or rows; sets `source` to the variable it took.
  std::string (*find_default)(const Lookup&, const Options&, const char*& source) = nullptr;
};

std::span<const OptionSpec> option_table() noexcept;

// May throw std::bad_alloc only. Not for a signal handler.
Options read_options(const Lookup& lookup, JobTraits traits = {});
Options read_options(JobTraits traits = {});  // from the environment
// A line for each variable of `variables` ("NAME=value", ended by nullptr) that is named like an
// option and is none, with the nearest name that is one.
std::string unknown_options(const char* const* variables);
// One row alone, e.g. of the options that a dump stores: sets its member of `out` only.
void read_option(std::string_view name, const Lookup& lookup, Options& out);

// Identity of this process as the environment gives it (torchrun, Slurm, MPI).
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
