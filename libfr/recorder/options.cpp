// options.cpp - the rows of the option table, one parser per kind of value, and identity.
#include "recorder/options.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "format/hash.hpp"
#include "format/system_names.hpp"
#include "recorder/job_name.hpp"

namespace fr {

std::string job_in_files(std::string text) {
  for (char& c : text) {
    const bool keep = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      c == '-' || c == '_';
    if (!keep) {
      c = c == '.' ? '-' : '_';  // '.' separates the parts of a dump's name
    }
  }
  return text.substr(0, 100);
}

namespace {

const char* environment(const char* name) {
  return std::getenv(name);
}

// The value of a variable that says something; `nothing` is a launcher's word for "not given".
const char* given(const Lookup& lookup, const char* name, const char* nothing = "") {
  const char* value = lookup(name);
  return value == nullptr || *value == '\0' || std::strcmp(value, nothing) == 0 ? nullptr : value;
}

// A part of a job's name: long ones keep their end, which differs more often, and a hash.
std::string short_part(const std::string& text) {
  constexpr std::size_t kMost = 44;  // characters: two such parts and "local" fit into a name
  if (text.size() <= kMost) {
    return text;
  }
  char hash[9];
  std::snprintf(hash, sizeof hash, "%08x",
                static_cast<u32>(hash_bytes(text.data(), text.size()) >> 32));
  return text.substr(text.size() - (kMost - 9)) + "-" + hash;
}

std::string launchers_job(const Lookup& lookup, const Options& o, const char*& source) {
  // torchrun without --rdzv-id says "none" for every job: not a name
  if (const char* run = given(lookup, source = "TORCHELASTIC_RUN_ID", "none")) {
    return run;
  }
  if (const char* slurm = given(lookup, source = "SLURM_JOB_ID")) {
    return slurm;
  }
  if (const char* address = given(lookup, source = "MASTER_ADDR")) {
    const char* port = given(lookup, "MASTER_PORT");
    return std::string(address) + "-" + (port != nullptr ? port : "0");
  }
  source = "default";
  JobTraits traits = o.traits;
  // mpirun's id of the job is the same on all nodes, the process that starts the ranks is not.
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const char* id = given(lookup, name)) {
      traits.launcher = id;
      return unnamed_job(traits);
    }
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (given(lookup, name) != nullptr) {
      traits.launcher.clear();
    }
  }
  return unnamed_job(traits);
}

std::string jobs_dump_dir(const Lookup&, const Options& o, const char*&) {
  return "./fr-dumps/" + o.job;  // FR_JOB's row is above
}

std::string users_cache(const Lookup& lookup, const Options&, const char*&) {
  if (const char* xdg = given(lookup, "XDG_CACHE_HOME")) {
    return std::string(xdg) + "/fr";
  }
  if (const char* home = given(lookup, "HOME")) {
    return std::string(home) + "/.cache/fr";
  }
  return "/tmp/fr-cache-" + std::to_string(getuid());
}

using K = OptionKind;
using O = Options;
constexpr OptionSpec kTable[] = {
    // clang-format off
    {"FR_ENABLE", {}, "1", K::kBool, &O::enable, "0: import fr is inert"},
    {"FR_BUFFER_SIZE", {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, "16384",
     K::kCount, &O::buffer_size,
     "records kept per rank (rounded up to a power of two, 64 to 1048576); 0 is off"},
    {"FR_DUMP_ON_TIMEOUT", {"TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"}, "1",
     K::kBool, &O::dump_on_timeout, "the watchdog writes dumps"},
    {"FR_WARN_S", {}, "10", K::kSeconds, &O::warn_ns,
     "no progress for this long with something in flight: one warning line"},
    {"FR_TIMEOUT_S", {}, "60", K::kSeconds, &O::timeout_ns,
     "no progress for this long: dump (never fatal)"},
    {"FR_ADAPT", {}, "1", K::kBool, &O::adapt,
     "deadlines learn per call site, FR_WARN_S and FR_TIMEOUT_S are floors; 0: as they stand"},
    {"FR_DEADLINES", {}, "", K::kText, &O::deadlines,
     "file that keeps over restarts what deadlines learned"},
    {"FR_JOB", {}, "<launcher>", K::kJob, &O::job,
     "job name: TORCHELASTIC_RUN_ID, SLURM_JOB_ID, MASTER_ADDR-MASTER_PORT, else address of "
     "the store and program, else local-program-launcher",
     {}, 0, {}, launchers_job},
    {"FR_DUMP_DIR", {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"},
     "./fr-dumps/<job>", K::kDirectory, &O::dump_dir,
     "where dumps go; of PyTorch's names the directory part", {}, 0, {}, jobs_dump_dir},
    {"FR_KEEP_DUMPS", {}, "4", K::kCount, &O::keep_dumps,
     "incidents kept per rank; older ones are removed, the first is always kept"},
    {"FR_VERDICT", {}, "1", K::kBool, &O::verdict,
     "after an incident one rank has frtrace read the dumps: the verdict on stderr, and in FR_DUMP_DIR "
     "as <job>.verdict.txt and .json"},
    {"FR_TRIGGER", {}, "auto", K::kWord, &O::trigger,
     "how incidents reach other nodes: auto (messages between nodes, then FR_DUMP_DIR), dir, off",
     {"auto", "dir", "off"}},
    {"FR_MISMATCH", {}, "1", K::kBool, &O::mismatch,
     "ranks that issue different operations in one group are told of while the job runs"},
    {"FR_FINGERPRINT", {}, "0", K::kCount, &O::fingerprint,
     "one of N operations, on the CPU and on CUDA: NaN and Inf in inputs are counted, outputs "
     "compared; 0 is off"},
    {"FR_SHM_DIR", {}, "/dev/shm", K::kDirectory, &O::shm_dir, "where the live ring is mapped"},
    {"FR_STACKS", {"TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"}, "python", K::kWord,
     &O::stacks, "call-site stacks per record: off, python, native (adds C++ frames)",
     {"off", "python", "native"}, 0, {"python", "native"}},
    {"FR_TIMING", {"TORCH_NCCL_ENABLE_TIMING"}, "auto", K::kWord, &O::timing,
     "device timings: off, auto (whatever costs no device call), events (CUDA events around each "
     "call of NCCL)", {"off", "auto", "events"}, 0, {"auto", "events"}},
    {"FR_THREADS", {}, "signal", K::kWord, &O::threads,
     "threads in dumps: off, proc (what /proc says), signal (each is interrupted for its stack)",
     {"off", "proc", "signal"}},
    {"FR_LOCALS", {}, "1", K::kBool, &O::locals,
     "dumps show plain variables of the innermost Python frames"},
    {"FR_ATTACH", {}, "0", K::kBool, &O::attach,
     "1: `frtrace attach` of the same user may evaluate expressions in this process"},
    {"FR_CRASHES", {}, "1", K::kBool, &O::crashes,
     "SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT leave a mark and a dump"},
    {"FR_RAS", {"NCCL_RAS_ADDR"}, "localhost:28028", K::kAddress, &O::ras,
     "NCCL's RAS service, queried when something hangs; 0: never (as with NCCL_RAS_ENABLE=0)"},
    {"FR_PIPE", {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE"}, "",
     K::kText, &O::pipe, "named pipe <value><rank>.pipe: any byte triggers a dump"},
    {"FR_SIGNAL", {}, "", K::kSignal, &O::signal,
     "name of a signal, e.g. USR2, that triggers a dump"},
    {"FR_CACHE_DIR", {}, "~/.cache/fr", K::kDirectory, &O::cache_dir,
     "adapters built against the installed torch", {}, 0, {}, users_cache},
    {"FR_LOG", {}, "warn", K::kWord, &O::log_level, "off, error, warn, info, debug on stderr",
     {"off", "error", "warn", "info", "debug"}, -1},
    // clang-format on
};

bool parse_bool(const char* text, bool& value) {
  for (const char* yes : {"1", "true", "t", "yes", "y", "on"}) {
    if (strcasecmp(text, yes) == 0) {
      value = true;
      return true;
    }
  }
  for (const char* no : {"0", "false", "f", "no", "n", "off"}) {
    if (strcasecmp(text, no) == 0) {
      value = false;
      return true;
    }
  }
  return false;
}

bool parse_count(const char* text, u32& value) {
  char* end = nullptr;
  errno = 0;
  const long long n = std::strtoll(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || n < 0 || n > INT_MAX) {
    return false;
  }
  value = static_cast<u32>(n);
  return true;
}

bool parse_seconds(const char* text, u64& ns) {
  char* end = nullptr;
  const double s = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(s) || s <= 0 || s > 1e9) {
    return false;
  }
  ns = static_cast<u64>(s * 1e9);
  return true;
}

std::string seconds_text(u64 ns) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", static_cast<double>(ns) / 1e9);
  return buffer;
}

int parse_signal(const char* text) {
  u32 n = 0;
  if (!parse_count(text, n)) {
    const char* bare = strncasecmp(text, "SIG", 3) == 0 ? text + 3 : text;
    bare = strcasecmp(bare, "IO") == 0 ? "POLL" : bare;  // glibc knows one name of the two
    for (int i = 1; i < NSIG && n == 0; ++i) {
      const char* name = signal_name(i);
      n = name != nullptr && strcasecmp(bare, name) == 0 ? static_cast<u32>(i) : 0;
    }
  }
  const bool can_be_caught =
      n >= 1 && n <= static_cast<u32>(SIGRTMAX) && n != SIGKILL && n != SIGSTOP;
  return can_be_caught ? static_cast<int>(n) : 0;
}

std::string absolute(const std::string& path) {
  if (!path.empty() && path[0] == '/') {
    return path;
  }
  char cwd[PATH_MAX];
  if (getcwd(cwd, sizeof cwd) == nullptr) {
    return path;
  }
  std::string rest = path;
  while (rest.rfind("./", 0) == 0) {
    rest.erase(0, 2);
  }
  return std::string(cwd) + "/" + rest;
}

std::string directory_part(const std::string& prefix) {
  const std::size_t slash = prefix.rfind('/');
  return slash == std::string::npos ? "." : prefix.substr(0, slash == 0 ? 1 : slash);
}

// Sets the member of `row` from `text` and `shown` to the value's text; false: not understood.
// `is_alias`: the text is that of one of PyTorch's names.
bool parse(const OptionSpec& row, std::string text, bool is_alias, Options& o, std::string& shown) {
  bool yes = false;
  if (is_alias && row.alias_words[0] != nullptr && parse_bool(text.c_str(), yes)) {
    text = row.alias_words[yes ? 1 : 0];
  }
  shown = text;
  switch (row.kind) {
    case OptionKind::kBool: {
      bool& value = o.*std::get<bool O::*>(row.member);
      const bool ok = parse_bool(text.c_str(), value);
      shown = value ? "1" : "0";
      return ok;
    }
    case OptionKind::kCount: {
      u32& value = o.*std::get<u32 O::*>(row.member);
      const bool ok = parse_count(text.c_str(), value);
      shown = std::to_string(value);
      return ok;
    }
    case OptionKind::kSeconds: {
      u64& value = o.*std::get<u64 O::*>(row.member);
      const bool ok = parse_seconds(text.c_str(), value);
      shown = seconds_text(value);
      return ok;
    }
    case OptionKind::kWord:
      for (int i = 0; i < 5 && row.words[i] != nullptr; ++i) {
        if (strcasecmp(text.c_str(), row.words[i]) == 0) {
          shown = row.words[i];
          std::visit(
              [&](auto member) {
                using Value = std::remove_reference_t<decltype(o.*member)>;
                if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, int>) {
                  o.*member = static_cast<Value>(row.first_word + i);
                }
              },
              row.member);
          return true;
        }
      }
      return false;
    case OptionKind::kDirectory:
      shown = absolute(is_alias ? directory_part(text) : text);
      break;
    case OptionKind::kJob:
      shown = job_in_files(text);
      break;
    case OptionKind::kAddress:
      if (parse_bool(text.c_str(), yes)) {
        text = yes ? row.default_text : "";
      }
      o.*std::get<std::string O::*>(row.member) = text;
      shown = text.empty() ? "0" : text;
      return true;
    case OptionKind::kSignal: {
      int& value = o.*std::get<int O::*>(row.member);
      value = parse_signal(text.c_str());
      return value != 0 || text.empty();
    }
    case OptionKind::kText:
      break;
  }
  o.*std::get<std::string O::*>(row.member) = shown;
  return true;
}

// The text that counts for a row and where it comes from; nullptr: nobody set it.
const char* find(const OptionSpec& row, const Lookup& lookup, const char*& source) {
  const char* text = lookup(source = row.name);
  for (const char* alias : row.aliases) {
    if (text == nullptr && alias != nullptr) {
      text = lookup(source = alias);
    }
  }
  if (row.kind == OptionKind::kAddress && source != row.name) {
    const char* enable = lookup("NCCL_RAS_ENABLE");  // NCCL's own switch beats NCCL's own address
    if (enable != nullptr && std::strcmp(enable, "0") == 0) {
      source = "NCCL_RAS_ENABLE";
      return enable;
    }
  }
  const bool may_be_empty = row.kind != OptionKind::kDirectory && row.kind != OptionKind::kJob &&
                            row.kind != OptionKind::kAddress;
  return text != nullptr && (*text != '\0' || may_be_empty) ? text : nullptr;
}

// The values that a row accepts, in words.
std::string expected(const OptionSpec& row) {
  switch (row.kind) {
    case OptionKind::kBool:
      return "0 or 1";
    case OptionKind::kCount:
      return "a whole number";
    case OptionKind::kSeconds:
      return "seconds without a unit, such as 60 or 0.5";
    case OptionKind::kWord: {
      std::string words;
      for (int i = 0; i < 5 && row.words[i] != nullptr; ++i) {
        words += std::string(i == 0 ? "" : ", ") + row.words[i];
      }
      return "one of " + words;
    }
    case OptionKind::kSignal:
      return "the name of a signal, such as USR2";
    case OptionKind::kAddress:
      return "host:port, or 0";
    case OptionKind::kDirectory:
    case OptionKind::kJob:
    case OptionKind::kText:
      break;
  }
  return "a text";
}

// Changed, added and removed characters that make b of a.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t k = 0; k <= b.size(); ++k) {
    row[k] = k;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t k = 1; k <= b.size(); ++k) {
      const std::size_t same = diagonal + (a[i - 1] == b[k - 1] ? 0 : 1);
      diagonal = row[k];
      row[k] = std::min({same, row[k] + 1, row[k - 1] + 1});
    }
  }
  return row[b.size()];
}

void read_row(const OptionSpec& row, const Lookup& lookup, Options& o) {
  const char* source = nullptr;
  std::string shown;
  const char* text = find(row, lookup, source);
  if (text == nullptr || !parse(row, text, source != row.name, o, shown)) {
    const char* refused = text != nullptr ? source : nullptr;
    source = "default";
    parse(row, row.find_default != nullptr ? row.find_default(lookup, o, source) : row.default_text,
          false, o, shown);
    if (refused != nullptr) {
      o.complaints += std::string(refused) + "=" + text + " is not understood (" + expected(row) +
                      "), using " + (shown.empty() ? "none" : shown) + "\n";
    }
  }
  for (char& c : shown) {
    c = c == '\n' || c == '\t' ? ' ' : c;  // they separate the table's rows and columns
  }
  o.table += std::string(row.name) + "=" + shown + "\t" + source + "\n";
}

i32 first_int(const Lookup& lookup, std::initializer_list<const char*> names, i32 otherwise) {
  for (const char* name : names) {
    const char* text = lookup(name);
    u32 n = 0;
    if (text != nullptr && parse_count(text, n)) {
      return static_cast<i32>(n);
    }
  }
  return otherwise;
}

// "value\tsource" of a row of Options::table.
std::string_view row_of(const std::string& table, std::string_view name) {
  const std::string key = std::string(name) + "=";
  std::size_t at = table.rfind("\n" + key);
  at = at != std::string::npos ? at + 1 : (table.rfind(key, 0) == 0 ? 0 : std::string::npos);
  if (at == std::string::npos) {
    return {};
  }
  at += key.size();
  return std::string_view(table).substr(at, table.find('\n', at) - at);
}

}  // namespace

std::span<const OptionSpec> option_table() noexcept {
  return kTable;
}

std::string unnamed_job(const JobTraits& traits) {
  // In the form of MASTER_ADDR-MASTER_PORT, which names the jobs of env://.
  std::string store = traits.store;
  if (const std::size_t colon = store.rfind(':'); colon != std::string::npos) {
    store[colon] = '-';
  }
  std::string name = store.empty() ? "local" : short_part(store);
  if (!traits.program.empty()) {
    name += "-" + short_part(traits.program);
  }
  // Only one job at a time has its store at an address.
  if (store.empty() && !traits.launcher.empty()) {
    name += "-" + short_part(traits.launcher);
  }
  return name;
}

Options read_options(const Lookup& lookup, JobTraits traits) {
  Options out{};
  out.traits = std::move(traits);
  for (const OptionSpec& row : kTable) {
    read_row(row, lookup, out);
  }
  const char* tmp = given(lookup, "TMPDIR");
  out.temporary_dir = tmp != nullptr ? absolute(tmp) : "/tmp";
  return out;
}

void read_option(std::string_view name, const Lookup& lookup, Options& out) {
  for (const OptionSpec& row : kTable) {
    if (name == row.name) {
      read_row(row, lookup, out);
    }
  }
}

std::string unknown_options(const char* const* variables) {
  std::string out;
  for (; variables != nullptr && *variables != nullptr; ++variables) {
    const std::string_view entry = *variables;
    const std::string_view name = entry.substr(0, entry.find('='));
    // FR_NCCL_CHAIN is not the user's: fr's Python package sets it for libfr
    if (name.substr(0, 3) != "FR_" || name.substr(0, 8) == "FR_TEST_" || name == "FR_NCCL_CHAIN") {
      continue;
    }
    const OptionSpec* nearest = nullptr;
    std::size_t least = std::max<std::size_t>(4, name.size() / 2);  // further away is no slip
    for (const OptionSpec& row : kTable) {
      // a part of the name, such as FR_TIMEOUT, is nearer than any other
      const std::string_view known = row.name;
      const std::size_t d =
          known.substr(0, name.size()) == name ? (known == name ? 0 : 1) : distance(name, known);
      if (d < least) {
        least = d;
        nearest = &row;
      }
    }
    if (least != 0 || nearest == nullptr) {
      out += std::string(name) + " is no option of fr and has no effect";
      out += nearest != nullptr ? std::string("; is ") + nearest->name + " meant?\n" : "\n";
    }
  }
  return out;
}

Options read_options(JobTraits traits) {
  return read_options(environment, std::move(traits));
}

std::string Options::value(std::string_view name) const {
  const std::string_view row = row_of(table, name);
  return std::string(row.substr(0, row.find('\t')));
}

std::string Options::source(std::string_view name) const {
  const std::string_view row = row_of(table, name);
  return row.empty() ? "" : std::string(row.substr(row.find('\t') + 1));
}

EnvIdentity read_identity(const Lookup& lookup) {
  EnvIdentity id;
  id.rank = first_int(
      lookup, {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}, -1);
  id.local_rank = first_int(
      lookup, {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, -1);
  id.world_size =
      first_int(lookup, {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 0);
  id.local_world_size = first_int(lookup,
                                  {"LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE",
                                   "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"},
                                  0);
  id.attempt = first_int(lookup, {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}, 0);
  return id;
}

EnvIdentity read_identity() {
  return read_identity(environment);
}

}  // namespace fr
