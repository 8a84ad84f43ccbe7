// test_durable_write.cpp - a file is there whole or not at all.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>

#include "catch.hpp"
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

TEST_CASE("make_private_parent: only a directory of ours that nobody else writes to") {
  TempDir tmp;
  const std::string parent = tmp.path() + "/fr-dumps-7", dir = parent + "/job";
  CHECK(make_private_parent(dir.c_str()));
  CHECK(make_private_parent(dir.c_str()));
  struct stat st;
  REQUIRE(stat(parent.c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0700);
  REQUIRE(chmod(parent.c_str(), 0777) == 0);
  CHECK_FALSE(make_private_parent(dir.c_str()));
  REQUIRE(rmdir(parent.c_str()) == 0);
  REQUIRE(mkdir((tmp.path() + "/trap").c_str(), 0700) == 0);
  REQUIRE(symlink("trap", parent.c_str()) == 0);
  CHECK_FALSE(make_private_parent(dir.c_str()));
  if (geteuid() == 0) {
    REQUIRE(unlink(parent.c_str()) == 0);
    REQUIRE(mkdir(parent.c_str(), 0755) == 0);
    REQUIRE(chown(parent.c_str(), 65534, 65534) == 0);
    CHECK_FALSE(make_private_parent(dir.c_str()));
  }
}

TEST_CASE("make_directories: never for all to write") {
  TempDir tmp;
  const mode_t before = umask(0);
  const bool made = make_directories((tmp.path() + "/a/b").c_str());
  umask(before);
  REQUIRE(made);
  struct stat st;
  REQUIRE(stat((tmp.path() + "/a/b").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0775);
}
