// test_options.cpp - the option table: defaults, names, values that do not parse.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "catch.hpp"
#include "recorder/options.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

Options read(const Environment& e) {
  return read_options([&e](const char* name) -> const char* {
    const auto it = e.find(name);
    return it != e.end() ? it->second.c_str() : nullptr;
  });
}

}  // namespace

TEST_CASE("the defaults are the contract's") {
  const Options o = read({{"HOME", "/home/u"}});
  CHECK(o.complaints.empty());
  CHECK(o.enable);
  CHECK(o.buffer_size == 16384);
  CHECK(o.dump_on_timeout);
  CHECK(o.warn_ns == 10'000'000'000);
  CHECK(o.timeout_ns == 60'000'000'000);
  char cwd[4096];
  CHECK(o.dump_dir == std::string(getcwd(cwd, sizeof cwd)) + "/fr-dumps/local");
  CHECK(o.keep_dumps == 4);
  CHECK(o.shm_dir == "/dev/shm");
  CHECK(o.job == "local");
  CHECK(o.stacks == Stacks::kPython);
  CHECK(o.timing == Timing::kAuto);
  CHECK(o.pipe.empty());
  CHECK(o.signal == 0);
  CHECK(o.cache_dir == "/home/u/.cache/fr");
  CHECK(o.log_level == 1);
  CHECK(o.threads == ThreadSampling::kSignal);
  CHECK(o.locals);
  CHECK(o.crashes);
  for (const OptionSpec& row : option_table()) {
    CAPTURE(row.name);
    CHECK(o.source(row.name) == "default");
    CHECK(row.meaning[0] != '\0');
  }
}

TEST_CASE("the default's text of each row is understood") {
  for (const OptionSpec& row : option_table()) {
    CAPTURE(row.name);
    if (row.find_default == nullptr) {
      const Options o = read({{row.name, row.default_text}});
      CHECK(o.complaints.empty());
      CHECK(o.value(row.name) == row.default_text);
      CHECK(o.value(row.name) == read({}).value(row.name));
    }
  }
}

TEST_CASE("one row read alone sets its member, with the default where the text is not understood") {
  const auto seconds = [](const char* text) {
    Options o{};
    read_option("FR_TIMEOUT_S", [&](const char*) { return text; }, o);
    return o.timeout_ns;
  };
  CHECK(seconds("2.5") == 2'500'000'000);
  CHECK(seconds(nullptr) == 60'000'000'000);
  CHECK(seconds("soon") == 60'000'000'000);
}

TEST_CASE("NCCL's own words on its RAS service") {
  CHECK(read({}).ras == "localhost:28028");
  CHECK(read({{"NCCL_RAS_ADDR", "h:1"}}).ras == "h:1");
  CHECK(read({{"NCCL_RAS_ADDR", "h:1"}, {"NCCL_RAS_ENABLE", "0"}}).ras.empty());
  CHECK(read({{"NCCL_RAS_ADDR", "h:1"}, {"NCCL_RAS_ENABLE", "1"}}).ras == "h:1");
  CHECK(read({{"NCCL_RAS_ENABLE", "0"}}).source("FR_RAS") == "NCCL_RAS_ENABLE");
  CHECK(read({{"NCCL_RAS_ENABLE", "0"}, {"FR_RAS", "h:2"}}).ras == "h:2");
  CHECK(read({{"FR_RAS", "on"}, {"NCCL_RAS_ADDR", "h:1"}}).ras == "localhost:28028");
}

TEST_CASE("every row of the table: its name beats the aliases, each alias beats the default") {
  // name -> a value, another, and how each is shown
  const std::map<std::string, std::vector<std::string>> values = {
      {"FR_ENABLE", {"0", "1"}},           {"FR_BUFFER_SIZE", {"128", "256"}},
      {"FR_DUMP_ON_TIMEOUT", {"0", "1"}},  {"FR_WARN_S", {"1.5", "2"}},
      {"FR_TIMEOUT_S", {"3", "4"}},        {"FR_DUMP_DIR", {"/a/x", "/b/y"}},
      {"FR_KEEP_DUMPS", {"7", "8"}},       {"FR_VERDICT", {"0", "1"}},
      {"FR_SHM_DIR", {"/s1", "/s2"}},      {"FR_JOB", {"j1", "j2"}},
      {"FR_STACKS", {"native", "python"}}, {"FR_TIMING", {"events", "auto"}},
      {"FR_PIPE", {"/p/1", "/p/2"}},       {"FR_SIGNAL", {"USR1", "USR2"}},
      {"FR_CACHE_DIR", {"/c1", "/c2"}},    {"FR_LOG", {"debug", "off"}},
      {"FR_THREADS", {"proc", "off"}},     {"FR_LOCALS", {"0", "1"}},
      {"FR_CRASHES", {"0", "1"}},          {"FR_RAS", {"h:1", "0"}},
      {"FR_TRIGGER", {"dir", "off"}},      {"FR_MISMATCH", {"0", "1"}},
      {"FR_FINGERPRINT", {"8", "1"}},      {"FR_ADAPT", {"0", "1"}},
      {"FR_DEADLINES", {"/a/d", "/b/d"}},  {"FR_ATTACH", {"0", "1"}}};
  REQUIRE(values.size() == option_table().size());
  for (const OptionSpec& row : option_table()) {
    CAPTURE(row.name);
    const auto& v = values.at(row.name);
    const Options own = read({{row.name, v[0]}});
    CHECK(own.value(row.name) == v[0]);
    CHECK(own.source(row.name) == row.name);
    CHECK(own.complaints.empty());
    std::string earlier;
    for (const char* alias : row.aliases) {
      if (alias == nullptr) {
        continue;
      }
      CAPTURE(alias);
      const Options by_alias = read({{alias, v[0]}});
      CHECK(by_alias.source(row.name) == alias);
      CHECK(by_alias.complaints.empty());
      const Options both = read({{row.name, v[1]}, {alias, v[0]}});
      CHECK(both.value(row.name) == v[1]);
      CHECK(both.source(row.name) == row.name);
      if (!earlier.empty()) {
        CHECK(read({{earlier, v[0]}, {alias, v[1]}}).source(row.name) == earlier);
      }
      earlier = alias;
    }
  }
}

TEST_CASE("PyTorch's names mean what they mean there") {
  CHECK(read({{"TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"}}).buffer_size == 2000);
  CHECK(read({{"TORCH_FR_BUFFER_SIZE", "0"}}).buffer_size == 0);
  CHECK_FALSE(read({{"TORCH_NCCL_DUMP_ON_TIMEOUT", "false"}}).dump_on_timeout);
  CHECK(read({{"TORCH_FR_CPP_STACK", "1"}}).stacks == Stacks::kNative);
  CHECK(read({{"TORCH_NCCL_TRACE_CPP_STACK", "0"}}).stacks == Stacks::kPython);
  CHECK(read({{"TORCH_NCCL_ENABLE_TIMING", "1"}}).timing == Timing::kEvents);
  CHECK(read({{"TORCH_NCCL_ENABLE_TIMING", "false"}}).timing == Timing::kAuto);
  CHECK(read({{"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/tmp/p_"}}).pipe == "/tmp/p_");
}

TEST_CASE("of PyTorch's dump file names the directory counts") {
  for (const char* name : {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}) {
    CHECK(read({{name, "/var/log/nccl_trace_rank_"}}).dump_dir == "/var/log");
    CHECK(read({{name, "/nccl_trace_rank_"}}).dump_dir == "/");
    CHECK(read({{name, "/a/b/c/"}}).dump_dir == "/a/b/c");
    char cwd[4096];
    const std::string here = getcwd(cwd, sizeof cwd);
    CHECK(read({{name, "trace_"}}).dump_dir.find(here) == 0);
    CHECK(read({{name, "logs/trace_"}}).dump_dir == here + "/logs");
  }
  CHECK(read({{"FR_DUMP_DIR", "/a/b"}}).dump_dir == "/a/b");
  CHECK(read({{"FR_DUMP_DIR", ""}, {"FR_JOB", "x"}}).dump_dir.ends_with("/fr-dumps/x"));
}

TEST_CASE("the job's name: FR_JOB, run id, Slurm, master, local") {
  Environment e = {{"FR_JOB", "mine"},
                   {"TORCHELASTIC_RUN_ID", "run7"},
                   {"SLURM_JOB_ID", "815"},
                   {"MASTER_ADDR", "node-1"},
                   {"MASTER_PORT", "29500"}};
  CHECK(read(e).job == "mine");
  CHECK(read(e).source("FR_JOB") == "FR_JOB");
  e["FR_JOB"] = "";
  CHECK(read(e).job == "run7");
  e.erase("FR_JOB");
  CHECK(read(e).job == "run7");
  CHECK(read(e).source("FR_JOB") == "TORCHELASTIC_RUN_ID");
  e["TORCHELASTIC_RUN_ID"] = "none";  // torchrun without --rdzv-id
  CHECK(read(e).job == "815");
  e.erase("SLURM_JOB_ID");
  CHECK(read(e).job == "node-1-29500");
  e.erase("MASTER_PORT");
  CHECK(read(e).job == "node-1-0");
  e.erase("MASTER_ADDR");
  CHECK(read(e).job == "local");
}

TEST_CASE("a job's name is safe within file names") {
  CHECK(read({{"FR_JOB", "a/b c.d:e\n"}}).job == "a_b_c-d_e_");
  CHECK(read({{"FR_JOB", "../../etc"}}).job == "--_--_etc");
  CHECK(read({{"FR_JOB", std::string(500, 'j')}}).job.size() == 100);
  CHECK(read({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1"}}).job == "10-0-0-1-1");
}

TEST_CASE("a value that does not parse is named and the default used") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"FR_ENABLE", "maybe"},
      {"FR_ENABLE", ""},
      {"FR_BUFFER_SIZE", "many"},
      {"FR_BUFFER_SIZE", "-5"},
      {"FR_BUFFER_SIZE", "1e9"},
      {"FR_BUFFER_SIZE", "99999999999999999999"},
      {"FR_DUMP_ON_TIMEOUT", "2"},
      {"FR_WARN_S", "soon"},
      {"FR_WARN_S", "nan"},
      {"FR_TIMEOUT_S", "-1"},
      {"FR_TIMEOUT_S", "inf"},
      {"FR_TIMEOUT_S", "10 s"},
      {"FR_TIMEOUT_S", "0"},
      {"FR_KEEP_DUMPS", "few"},
      {"FR_STACKS", "all"},
      {"FR_TIMING", "on"},
      {"FR_SIGNAL", "KILL"},
      {"FR_SIGNAL", "9"},
      {"FR_SIGNAL", "NOPE"},
      {"FR_LOG", "loud"},
      {"FR_TRIGGER", "udp"},
      {"TORCH_FR_BUFFER_SIZE", "x"},
      {"TORCH_NCCL_ENABLE_TIMING", "perhaps"}};
  const Options defaults = read({});
  for (const auto& [name, value] : bad) {
    CAPTURE(name, value);
    Options o;
    REQUIRE_NOTHROW(o = read({{name, value}}));
    CHECK(o.complaints.find(name + "=" + value + " is not understood") == 0);
    CHECK(std::count(o.complaints.begin(), o.complaints.end(), '\n') == 1);
    CHECK(o.table == defaults.table);
  }
}

TEST_CASE("yes and no in every spelling") {
  for (const char* yes : {"1", "true", "True", "YES", "on", "y", "T"}) {
    CHECK(read({{"FR_ENABLE", yes}}).enable);
  }
  for (const char* no : {"0", "false", "FALSE", "no", "Off", "n", "f"}) {
    CHECK_FALSE(read({{"FR_ENABLE", no}}).enable);
  }
}

TEST_CASE("signals by name, with SIG, in any case, by number") {
  CHECK(read({{"FR_SIGNAL", "USR2"}}).signal == SIGUSR2);
  CHECK(read({{"FR_SIGNAL", "SIGUSR1"}}).signal == SIGUSR1);
  CHECK(read({{"FR_SIGNAL", "sigquit"}}).signal == SIGQUIT);
  CHECK(read({{"FR_SIGNAL", "12"}}).signal == 12);
}

TEST_CASE("relative directories are made absolute") {
  char cwd[4096];
  const std::string here = getcwd(cwd, sizeof cwd);
  CHECK(read({{"FR_DUMP_DIR", "./a"}}).dump_dir == here + "/a");
  CHECK(read({{"FR_DUMP_DIR", "a/b"}}).dump_dir == here + "/a/b");
  CHECK(read({{"FR_SHM_DIR", "s"}}).shm_dir == here + "/s");
}

TEST_CASE("the cache directory: own, XDG, home, temporary") {
  CHECK(read({{"FR_CACHE_DIR", "/c"}, {"XDG_CACHE_HOME", "/x"}}).cache_dir == "/c");
  CHECK(read({{"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}}).cache_dir == "/x/fr");
  CHECK(read({{"HOME", "/h"}}).cache_dir == "/h/.cache/fr");
  CHECK(read({}).cache_dir == "/tmp/fr-cache-" + std::to_string(getuid()));
}

TEST_CASE("the table holds one line per row and value() finds them") {
  const Options o = read({{"FR_PIPE", "/tmp/FR_JOB=tricky"}, {"FR_JOB", "j"}});
  CHECK(static_cast<std::size_t>(std::count(o.table.begin(), o.table.end(), '\n')) ==
        option_table().size());
  CHECK(o.value("FR_JOB") == "j");
  CHECK(o.value("FR_PIPE") == "/tmp/FR_JOB=tricky");
  CHECK(o.value("FR_NOPE").empty());
  CHECK(o.value("JOB").empty());
}

TEST_CASE("a line break in a value does not forge a row") {
  const Options o = read({{"FR_PIPE", "x\tdefault\nFR_JOB=forged"}, {"FR_JOB", "real"}});
  CHECK(o.value("FR_JOB") == "real");
  CHECK(static_cast<std::size_t>(std::count(o.table.begin(), o.table.end(), '\n')) ==
        option_table().size());
}

TEST_CASE("variables that are named like options and are none are said, with the nearest name") {
  const char* const variables[] = {
      "FR_TIMOUT_S=5",    "FR_TIMEOUT=5", "FR_TIMEOUT_S=5",  "FR_WARNS=1",
      "FR_XYZZY_PLUGH=1", "PATH=/bin",    "FR_NCCL_CHAIN=x", nullptr};
  CHECK(unknown_options(variables) ==
        "FR_TIMOUT_S is no option of fr and has no effect; is FR_TIMEOUT_S meant?\n"
        "FR_TIMEOUT is no option of fr and has no effect; is FR_TIMEOUT_S meant?\n"
        "FR_WARNS is no option of fr and has no effect; is FR_WARN_S meant?\n"
        "FR_XYZZY_PLUGH is no option of fr and has no effect\n");
  CHECK(unknown_options(nullptr).empty());
}
