#include "recorder/options.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace fr {
namespace {

constexpr OptionSpec kTable[] = {
    {"FR_ENABLE", {}, "1", "0: import fr is inert"},
    {"FR_BUFFER_SIZE",
     {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"},
     "16384",
     "records kept per rank (rounded up to a power of two, 64 to 1048576); 0 is off"},
    {"FR_DUMP_ON_TIMEOUT",
     {"TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"},
     "1",
     "the watchdog writes dumps"},
    {"FR_WARN_S", {}, "10", "no progress for this long with something in flight: one warning line"},
    {"FR_TIMEOUT_S", {}, "60", "no progress for this long: dump (never fatal)"},
    {"FR_DUMP_DIR",
     {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"},
     "./fr-dumps/<job>",
     "where dumps go; of PyTorch's names the directory part"},
    {"FR_KEEP_DUMPS", {}, "4", "incidents kept per rank; older ones go, the first always stays"},
    {"FR_SHM_DIR", {}, "/dev/shm", "where the live ring is mapped"},
    {"FR_JOB",
     {},
     "<launcher>",
     "job name: TORCHELASTIC_RUN_ID, SLURM_JOB_ID, MASTER_ADDR-MASTER_PORT or local"},
    {"FR_STACKS",
     {"TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"},
     "python",
     "call-site stacks per record: off, python, native (adds C++ frames)"},
    {"FR_TIMING",
     {"TORCH_NCCL_ENABLE_TIMING"},
     "auto",
     "device timings: off, auto (whatever costs no device call), events (CUDA events around each "
     "call of NCCL)"},
    {"FR_THREADS",
     {},
     "signal",
     "threads in dumps: off, proc (what /proc says), signal (each is interrupted for its stack)"},
    {"FR_LOCALS", {}, "1", "dumps show plain variables of the innermost Python frames"},
    {"FR_CRASHES", {}, "1", "SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT leave a mark and a dump"},
    {"FR_RAS",
     {"NCCL_RAS_ADDR"},
     "localhost:28028",
     "where NCCL's RAS service is asked when something hangs, 0: not (as with NCCL_RAS_ENABLE=0)"},
    {"FR_PIPE",
     {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE"},
     "",
     "named pipe <value><rank>.pipe: any byte triggers a dump"},
    {"FR_SIGNAL", {}, "", "name of a signal, e.g. USR2, that triggers a dump"},
    {"FR_CACHE_DIR", {}, "~/.cache/fr", "adapters built against the installed torch"},
    {"FR_LOG", {}, "warn", "off, error, warn, info, debug on stderr"},
};

struct Reader {
  const Lookup& lookup;
  Options& out;

  // The text that counts for a row, and where it comes from.
  const char* find(const char* name, const char*& source) const {
    for (const OptionSpec& row : kTable) {
      if (std::strcmp(row.name, name) != 0) {
        continue;
      }
      if (const char* own = lookup(name)) {
        source = row.name;
        return own;
      }
      for (const char* alias : row.aliases) {
        const char* value = alias != nullptr ? lookup(alias) : nullptr;
        if (value != nullptr) {
          source = alias;
          return value;
        }
      }
      source = "default";
      return nullptr;
    }
    return nullptr;
  }

  void complain(const char* source, const char* value, const std::string& used) const {
    out.complaints +=
        std::string(source) + "=" + value + " is not understood, using " + used + "\n";
  }

  void show(const char* name, std::string value, const char* source) const {
    for (char& c : value) {
      c = c == '\n' || c == '\t' ? ' ' : c;  // they separate the table's rows and columns
    }
    out.table += std::string(name) + "=" + value + "\t" + source + "\n";
  }
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
  static constexpr struct {
    const char* name;
    int number;
  } kSignals[] = {{"HUP", SIGHUP},     {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"QUIT", SIGQUIT},
                  {"WINCH", SIGWINCH}, {"URG", SIGURG},   {"CONT", SIGCONT}, {"IO", SIGIO},
                  {"PWR", SIGPWR},     {"TRAP", SIGTRAP}, {"ALRM", SIGALRM}, {"VTALRM", SIGVTALRM},
                  {"PROF", SIGPROF}};
  const char* bare = strncasecmp(text, "SIG", 3) == 0 ? text + 3 : text;
  for (const auto& s : kSignals) {
    if (strcasecmp(bare, s.name) == 0) {
      return s.number;
    }
  }
  u32 n = 0;
  if (parse_count(text, n) && n >= 1 && n <= static_cast<u32>(SIGRTMAX) && n != SIGKILL &&
      n != SIGSTOP) {
    return static_cast<int>(n);
  }
  return 0;
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

// A job name is part of file names.
std::string file_safe(std::string text) {
  for (char& c : text) {
    const bool keep = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      c == '-' || c == '_';
    if (!keep) {
      c = c == '.' ? '-' : '_';  // '.' separates the parts of a dump's name
    }
  }
  return text.substr(0, 100);
}

const char* set_and_not(const Lookup& lookup, const char* name, const char* placeholder) {
  const char* value = lookup(name);
  if (value == nullptr || *value == '\0' || std::strcmp(value, placeholder) == 0) {
    return nullptr;
  }
  return value;
}

const char* environment(const char* name) {
  return std::getenv(name);
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

}  // namespace

std::span<const OptionSpec> option_table() noexcept {
  return kTable;
}

Options read_options() {
  return read_options(environment);
}
EnvIdentity read_identity() {
  return read_identity(environment);
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

Options read_options(const Lookup& lookup) {
  Options out;
  const Reader in{lookup, out};
  const char* source = "default";

  const auto read_bool = [&](const char* name, bool& value) {
    const char* text = in.find(name, source);
    if (text != nullptr && !parse_bool(text, value)) {
      in.complain(source, text, value ? "1" : "0");
      source = "default";
    }
    in.show(name, value ? "1" : "0", source);
  };
  const auto read_count = [&](const char* name, u32& value) {
    const char* text = in.find(name, source);
    if (text != nullptr && !parse_count(text, value)) {
      in.complain(source, text, std::to_string(value));
      source = "default";
    }
    in.show(name, std::to_string(value), source);
  };
  const auto read_seconds = [&](const char* name, u64 otherwise, u64& value) {
    value = otherwise;
    const char* text = in.find(name, source);
    if (text != nullptr && !parse_seconds(text, value)) {
      in.complain(source, text, seconds_text(otherwise));
      value = otherwise;
      source = "default";
    }
    in.show(name, seconds_text(value), source);
  };

  // FR_JOB first: FR_DUMP_DIR's default holds it.
  const char* job_source = "default";
  const char* job = in.find("FR_JOB", job_source);
  std::string job_text;
  if (job != nullptr && *job != '\0') {
    job_text = job;
  } else if (const char* run = set_and_not(lookup, "TORCHELASTIC_RUN_ID", "none")) {
    // torchrun without --rdzv-id says "none" for every job: not a name
    job_text = run;
    job_source = "TORCHELASTIC_RUN_ID";
  } else if (const char* slurm = set_and_not(lookup, "SLURM_JOB_ID", "")) {
    job_text = slurm;
    job_source = "SLURM_JOB_ID";
  } else if (const char* address = set_and_not(lookup, "MASTER_ADDR", "")) {
    const char* port = set_and_not(lookup, "MASTER_PORT", "");
    job_text = std::string(address) + "-" + (port != nullptr ? port : "0");
    job_source = "MASTER_ADDR";
  } else {
    job_text = "local";
  }
  out.job = file_safe(job_text);

  read_bool("FR_ENABLE", out.enable);
  read_count("FR_BUFFER_SIZE", out.buffer_size);
  read_bool("FR_DUMP_ON_TIMEOUT", out.dump_on_timeout);
  read_seconds("FR_WARN_S", 10'000'000'000ull, out.warn_ns);
  read_seconds("FR_TIMEOUT_S", 60'000'000'000ull, out.timeout_ns);

  const char* dir = in.find("FR_DUMP_DIR", source);
  if (dir != nullptr && *dir != '\0') {
    out.dump_dir = dir;
    if (std::strcmp(source, "FR_DUMP_DIR") != 0) {
      const std::size_t slash = out.dump_dir.rfind('/');
      out.dump_dir =
          slash == std::string::npos ? "." : out.dump_dir.substr(0, slash == 0 ? 1 : slash);
    }
  } else {
    out.dump_dir = "./fr-dumps/" + out.job;
    source = "default";
  }
  out.dump_dir = absolute(out.dump_dir);
  in.show("FR_DUMP_DIR", out.dump_dir, source);

  read_count("FR_KEEP_DUMPS", out.keep_dumps);

  const char* shm = in.find("FR_SHM_DIR", source);
  out.shm_dir = absolute(shm != nullptr && *shm != '\0' ? shm : "/dev/shm");
  in.show("FR_SHM_DIR", out.shm_dir, source);
  in.show("FR_JOB", out.job, job_source);

  const char* stacks = in.find("FR_STACKS", source);
  bool cpp = false;
  if (stacks == nullptr || std::strcmp(stacks, "python") == 0) {
    out.stacks = Stacks::kPython;
  } else if (std::strcmp(stacks, "off") == 0 && std::strcmp(source, "FR_STACKS") == 0) {
    out.stacks = Stacks::kOff;
  } else if (std::strcmp(stacks, "native") == 0) {
    out.stacks = Stacks::kNative;
  } else if (std::strcmp(source, "FR_STACKS") != 0 && parse_bool(stacks, cpp)) {
    out.stacks = cpp ? Stacks::kNative : Stacks::kPython;
  } else {
    in.complain(source, stacks, "python");
    source = "default";
  }
  in.show("FR_STACKS",
          out.stacks == Stacks::kOff      ? "off"
          : out.stacks == Stacks::kNative ? "native"
                                          : "python",
          source);

  const char* timing = in.find("FR_TIMING", source);
  bool events = false;
  if (timing == nullptr || std::strcmp(timing, "auto") == 0) {
    out.timing = Timing::kAuto;
  } else if (std::strcmp(source, "FR_TIMING") != 0 && parse_bool(timing, events)) {
    out.timing = events ? Timing::kEvents : Timing::kAuto;
  } else if (std::strcmp(timing, "off") == 0) {
    out.timing = Timing::kOff;
  } else if (std::strcmp(timing, "events") == 0) {
    out.timing = Timing::kEvents;
  } else {
    in.complain(source, timing, "auto");
    source = "default";
  }
  in.show("FR_TIMING",
          out.timing == Timing::kOff      ? "off"
          : out.timing == Timing::kEvents ? "events"
                                          : "auto",
          source);

  const char* threads = in.find("FR_THREADS", source);
  if (threads == nullptr || std::strcmp(threads, "signal") == 0) {
    out.threads = ThreadLooks::kSignal;
  } else if (std::strcmp(threads, "proc") == 0) {
    out.threads = ThreadLooks::kProc;
  } else if (std::strcmp(threads, "off") == 0) {
    out.threads = ThreadLooks::kOff;
  } else {
    in.complain(source, threads, "signal");
    source = "default";
  }
  in.show("FR_THREADS",
          out.threads == ThreadLooks::kOff    ? "off"
          : out.threads == ThreadLooks::kProc ? "proc"
                                              : "signal",
          source);
  read_bool("FR_LOCALS", out.locals);
  read_bool("FR_CRASHES", out.crashes);

  out.ras = "localhost:28028";
  const char* ras = in.find("FR_RAS", source);
  const char* ras_enable = lookup("NCCL_RAS_ENABLE");
  bool ask = true;
  if (ras != nullptr && *ras != '\0' && !parse_bool(ras, ask)) {
    out.ras = ras;
  } else if (!ask) {
    out.ras.clear();
  }
  if (ras_enable != nullptr && std::strcmp(ras_enable, "0") == 0 &&
      std::strcmp(source, "FR_RAS") != 0) {
    out.ras.clear();
    source = "NCCL_RAS_ENABLE";
  }
  in.show("FR_RAS", out.ras.empty() ? "0" : out.ras, source);

  const char* pipe = in.find("FR_PIPE", source);
  out.pipe = pipe != nullptr ? pipe : "";
  in.show("FR_PIPE", out.pipe, source);

  const char* signal_text = in.find("FR_SIGNAL", source);
  if (signal_text != nullptr && *signal_text != '\0') {
    out.signal = parse_signal(signal_text);
    if (out.signal == 0) {
      in.complain(source, signal_text, "none");
      source = "default";
    }
  }
  in.show("FR_SIGNAL", out.signal != 0 ? signal_text : "", source);

  const char* cache = in.find("FR_CACHE_DIR", source);
  if (cache != nullptr && *cache != '\0') {
    out.cache_dir = cache;
  } else {
    const char* xdg = set_and_not(lookup, "XDG_CACHE_HOME", "");
    const char* home = set_and_not(lookup, "HOME", "");
    out.cache_dir = xdg != nullptr    ? std::string(xdg) + "/fr"
                    : home != nullptr ? std::string(home) + "/.cache/fr"
                                      : "/tmp/fr-cache-" + std::to_string(getuid());
  }
  out.cache_dir = absolute(out.cache_dir);
  in.show("FR_CACHE_DIR", out.cache_dir, source);

  const char* tmp = set_and_not(lookup, "TMPDIR", "");
  out.temporary_dir = tmp != nullptr ? absolute(tmp) : "/tmp";

  static constexpr const char* kLevels[] = {"off", "error", "warn", "info", "debug"};
  const char* level = in.find("FR_LOG", source);
  if (level != nullptr) {
    int found = -2;
    for (int i = 0; i < 5; ++i) {
      if (strcasecmp(level, kLevels[i]) == 0) {
        found = i - 1;
      }
    }
    if (found == -2) {
      in.complain(source, level, "warn");
      source = "default";
    } else {
      out.log_level = found;
    }
  }
  in.show("FR_LOG", kLevels[out.log_level + 1], source);
  return out;
}

std::string Options::value(std::string_view name) const {
  const std::string key = std::string(name) + "=";
  std::size_t at = table.rfind("\n" + key);
  at = at != std::string::npos ? at + 1 : (table.rfind(key, 0) == 0 ? 0 : std::string::npos);
  if (at == std::string::npos) {
    return "";
  }
  at += key.size();
  return table.substr(at, table.find('\t', at) - at);
}

}  // namespace fr
