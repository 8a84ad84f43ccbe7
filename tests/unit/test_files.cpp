// test_files.cpp - async-signal-safe file functions: durable writes, directories, names of dumps.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>

#include "catch.hpp"
#include "format/file_name.hpp"
#include "format/text.hpp"
#include "sample/directory.hpp"
#include "sample/process.hpp"
#include "support.hpp"
#include "watch/durable_write.hpp"

using namespace fr;
using namespace fr::test;

namespace {

bool write_one(const std::string& dir, const std::string& name, const std::string& data,
               std::string* path = nullptr) {
  char out[PATH_MAX] = {};
  const bool ok =
      write_durably(dir.c_str(), name.c_str(), data.data(), data.size(), out, sizeof out);
  if (path != nullptr) {
    *path = out;
  }
  return ok;
}

}  // namespace

TEST_CASE("write_durably makes the directory and writes the whole file, mode 0600") {
  TempDir tmp;
  const std::string dir = tmp.path() + "/a/b/c";
  const std::string data(3'000'000, 'd');
  std::string path;
  REQUIRE(write_one(dir, "x.fr", data, &path));
  CHECK(path == dir + "/x.fr");
  CHECK(read_file(path) == data);
  CHECK(list(dir) == std::vector<std::string>{"x.fr"});
  struct stat st;
  REQUIRE(stat(path.c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
}

TEST_CASE("write_durably replaces a file of that name") {
  TempDir tmp;
  REQUIRE(write_one(tmp.path(), "x.fr", "old and longer"));
  REQUIRE(write_one(tmp.path(), "x.fr", "new"));
  CHECK(read_file(tmp.path() + "/x.fr") == "new");
  CHECK(list(tmp.path()).size() == 1);
}

TEST_CASE("write_durably leaves nothing behind where it cannot write") {
  TempDir tmp;
  SECTION("no such directory, and none can be made") {
    CHECK_FALSE(write_one("/proc/fr-none/x", "x.fr", "data"));
    CHECK(errno != 0);
  }
  SECTION("a file stands where the directory should be") {
    write_file(tmp.path() + "/file", "");
    CHECK_FALSE(write_one(tmp.path() + "/file", "x.fr", "data"));
    CHECK(list(tmp.path()).size() == 1);
  }
  SECTION("a directory stands where the file should be") {
    mkdir((tmp.path() + "/x.fr").c_str(), 0700);
    write_file(tmp.path() + "/x.fr/full", "");
    CHECK_FALSE(write_one(tmp.path(), "x.fr", "data"));
    CHECK(list(tmp.path()).size() == 1);
  }
  SECTION("a path too long") {
    CHECK_FALSE(write_one(tmp.path() + "/" + std::string(PATH_MAX, 'l'), "x.fr", "data"));
    CHECK_FALSE(write_one(tmp.path(), std::string(300, 'n'), "data"));
    CHECK(list(tmp.path()).empty());
  }
  SECTION("the file system is full") {
    // a limit on the file's size says the same at the same call
    struct rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    const struct rlimit small{100'000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const bool ok = write_one(tmp.path(), "x.fr", std::string(1'000'000, 'd'));
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    CHECK_FALSE(ok);
    CHECK(list(tmp.path()).empty());
  }
}

TEST_CASE("write_durably leaves nothing on a full tmpfs") {
  TempDir tmp;
  if (mount("fr-test", tmp.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    WARN("skipped: cannot mount here");
    return;
  }
  CHECK_FALSE(write_one(tmp.path(), "x.fr", std::string(1'000'000, 'd')));
  CHECK(errno == ENOSPC);
  CHECK(list(tmp.path()).empty());
  CHECK(write_one(tmp.path(), "x.fr", "small"));
  umount(tmp.path().c_str());
}

TEST_CASE("a planted symbolic link at the temporary name is not followed") {
  TempDir tmp;
  write_file(tmp.path() + "/victim", "precious");
  const std::string temporary = tmp.path() + "/.x.fr." + std::to_string(getpid()) + ".tmp";
  REQUIRE(symlink((tmp.path() + "/victim").c_str(), temporary.c_str()) == 0);
  CHECK(write_one(tmp.path(), "x.fr", "data"));
  CHECK(read_file(tmp.path() + "/victim") == "precious");
  CHECK(read_file(tmp.path() + "/x.fr") == "data");
}

TEST_CASE("names: formatted and parsed alike") {
  struct {
    const char* job;
    i32 attempt, rank;
    u64 number;
    const char* ending;
  } cases[] = {{"job", 0, 0, 1, "fr"},
               {"a-b_c", 3, 1023, 17, "fr"},
               {"815", 12, -1, 4242, "ring"},
               {"x", 0, 7, 999'999'999'999ull, "fr"},
               {"j", 0, 0, 0, "ring"}};
  for (const auto& c : cases) {
    char name[256];
    format_name(name, sizeof name, c.job, c.attempt, c.rank, c.number, c.ending);
    CAPTURE(name);
    NameParts parts;
    REQUIRE(parse_name(name, parts));
    CHECK(std::string(parts.job) == c.job);
    CHECK(parts.attempt == c.attempt);
    CHECK(parts.rank == c.rank);
    CHECK(parts.number == c.number);
    CHECK(parts.is_fr == (std::string(c.ending) == "fr"));
  }
  char name[256];
  format_name(name, sizeof name, "job", 0, 2, 5, "fr");
  CHECK(std::string(name) == "job.a0.r2.5.fr");
  format_name(name, sizeof name, "job", 0, -1, 5, "fr");
  CHECK(std::string(name) == "job.a0.rx.5.fr");
}

TEST_CASE("names that are not ours") {
  NameParts parts;
  for (const char* name :
       {"", ".", "job", "job.fr", ".a0.r0.1.fr", "job.a0.r0.fr", "job.a0.r0.1.txt",
        "job.a0.r0.1.fr.tmp", "job.ax.r0.1.fr", "job.a0.r.1.fr", "job.a0.r0..fr", "job.a0.r0.1",
        "job.a0.rx1.1.fr", ".job.a0.r0.1.fr.77.tmp", "job.a0.r0.99999999999999999999999.fr",
        "job.b0.r0.1.fr"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_name(name, parts));
  }
  CHECK_FALSE(parse_name((std::string(300, 'j') + ".a0.r0.1.fr").c_str(), parts));
}

TEST_CASE("process_start: the same for a living process, 0 for the dead and for zombies") {
  const u64 own = process_start(getpid());
  CHECK(own != 0);
  CHECK(process_start(getpid()) == own);
  CHECK(is_alive(getpid(), own));
  CHECK_FALSE(is_alive(getpid(), own + 1));
  CHECK_FALSE(is_alive(getpid(), 0));
  CHECK_FALSE(is_alive(0, own));
  CHECK_FALSE(is_alive(-1, own));

  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const u64 start = process_start(child);
  CHECK(start >= own);
  CHECK(is_alive(child, start));
  kill(child, SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  CHECK(process_start(child) == 0);  // a zombie
  waitpid(child, nullptr, 0);
  CHECK(process_start(child) == 0);  // gone
}

TEST_CASE("process_start survives names with spaces and brackets") {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const int fd = open("/proc/self/comm", O_WRONLY);
    [[maybe_unused]] ssize_t n = write(fd, ") Z 1 (", 7);
    n = write(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  char x;
  REQUIRE(read(ready[0], &x, 1) == 1);
  CHECK(process_start(child) >= process_start(getpid()));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("each_entry visits every name once, many of them too") {
  TempDir tmp;
  std::vector<std::string> expected;
  for (int i = 0; i < 1'000; ++i) {
    expected.push_back("file-with-a-rather-long-name-" + std::to_string(i));
    write_file(tmp.path() + "/" + expected.back(), "");
  }
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> seen;
  CHECK(each_entry(
      tmp.path().c_str(),
      [](const char* name, void* c) {
        static_cast<std::vector<std::string>*>(c)->emplace_back(name);
      },
      &seen));
  std::sort(seen.begin(), seen.end());
  CHECK(seen == expected);
  CHECK_FALSE(each_entry("/nowhere", [](const char*, void*) {}, nullptr));
}

TEST_CASE("make_directories: nested, present, impossible") {
  TempDir tmp;
  const std::string deep = tmp.path() + "/x//y/z/";
  CHECK(make_directories(deep.c_str()));
  CHECK(exists(tmp.path() + "/x/y/z"));
  CHECK(make_directories(deep.c_str()));
  CHECK_FALSE(make_directories("/proc/fr-none"));
  CHECK_FALSE(make_directories(std::string(2 * PATH_MAX, 'x').c_str()));
}

TEST_CASE("format: what it knows, cut to fit") {
  char out[64];
  CHECK(format(out, sizeof out, "%s.%d.%u.%l%%", "a", -12, 4'000'000'000u, u64{1} << 63) == 37);
  CHECK(std::string(out) == "a.-12.4000000000.9223372036854775808%");
  CHECK(format(out, 4, "%s", "abcdef") == 3);
  CHECK(std::string(out) == "abc");
  format(out, sizeof out, "%d", INT_MIN);
  CHECK(std::string(out) == "-2147483648");
}
