// test_region.cpp - the mapped file: where it is made, its permissions, leftovers.
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catch.hpp"
#include "recorder/region.hpp"
#include "sample/map_file.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

struct Mapped : Region {
  explicit Mapped(Region r) : Region(std::move(r)) {}
  ~Mapped() { munmap(base, bytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
};

unsigned mode(const std::string& path) {
  struct stat st;
  return lstat(path.c_str(), &st) == 0 ? st.st_mode & 0777u : 0;
}

}  // namespace

TEST_CASE("region: one file, its directory for the owner only, fully allocated") {
  TempDir shm("/dev/shm");
  Mapped r(create_region(shm.path(), "job.a0.r0.1.ring", 16384));
  REQUIRE_FALSE(r.anonymous);
  CHECK(r.why.empty());
  CHECK(r.dir == shm.path() + "/fr-" + std::to_string(geteuid()));
  CHECK(mode(r.dir) == 0700);
  CHECK(mode(r.dir + "/" + r.name) == 0600);
  struct stat st;
  REQUIRE(stat((r.dir + "/" + r.name).c_str(), &st) == 0);
  CHECK(static_cast<std::size_t>(st.st_size) == r.bytes);
  CHECK(static_cast<std::size_t>(st.st_blocks) * 512 >= r.bytes);
  CHECK(r.header().magic == 0);  // stored last, by the recorder
}

TEST_CASE("region: a directory that was open to others is closed") {
  TempDir shm("/dev/shm");
  const std::string dir = shm.path() + "/fr-" + std::to_string(geteuid());
  mkdir(dir.c_str(), 0700);
  chmod(dir.c_str(), 0777);
  Mapped r(create_region(shm.path(), "x.ring", 64));
  CHECK_FALSE(r.anonymous);
  CHECK(mode(dir) == 0700);
}

TEST_CASE("region: a symbolic link in place of the directory is refused") {
  TempDir shm("/dev/shm");
  TempDir elsewhere;
  const std::string dir = shm.path() + "/fr-" + std::to_string(geteuid());
  REQUIRE(symlink(elsewhere.path().c_str(), dir.c_str()) == 0);
  Mapped r(create_region(shm.path(), "x.ring", 64));
  CHECK(r.anonymous);
  CHECK(r.dir.empty());
  CHECK(r.why.find("not a directory of ours") != std::string::npos);
  CHECK(list(elsewhere.path()).empty());
}

TEST_CASE("region: another user's directory is refused") {
  if (geteuid() != 0) {
    WARN("skipped: needs root to make another user's directory");
    return;
  }
  TempDir shm("/dev/shm");
  const std::string dir = shm.path() + "/fr-0";
  mkdir(dir.c_str(), 0700);
  REQUIRE(chown(dir.c_str(), 12345, 12345) == 0);
  Mapped r(create_region(shm.path(), "x.ring", 64));
  CHECK(r.anonymous);
}

TEST_CASE("region: a symbolic link planted at the file's name is not followed") {
  TempDir shm("/dev/shm");
  const std::string dir = shm.path() + "/fr-" + std::to_string(geteuid());
  mkdir(dir.c_str(), 0700);
  write_file(shm.path() + "/victim", "precious");
  REQUIRE(symlink((shm.path() + "/victim").c_str(), (dir + "/x.ring").c_str()) == 0);
  Mapped r(create_region(shm.path(), "x.ring", 64));
  CHECK(read_file(shm.path() + "/victim") == "precious");
  struct stat st;
  CHECK((r.anonymous || (lstat((dir + "/x.ring").c_str(), &st) == 0 && S_ISREG(st.st_mode))));
}

TEST_CASE("region: a leftover of our pid is replaced") {
  TempDir shm("/dev/shm");
  const std::string dir = shm.path() + "/fr-" + std::to_string(geteuid());
  mkdir(dir.c_str(), 0700);
  write_file(dir + "/x.ring", "old");
  Mapped r(create_region(shm.path(), "x.ring", 64));
  CHECK_FALSE(r.anonymous);
  CHECK(read_file(dir + "/x.ring").size() == r.bytes);
}

TEST_CASE("region: without a usable FR_SHM_DIR it lies in anonymous memory and says why") {
  Mapped r(create_region("/proc/fr-none", "x.ring", 64));
  CHECK(r.anonymous);
  CHECK(r.header().anonymous == 1);
  CHECK(r.name.empty());
  CHECK_FALSE(r.why.empty());
  r.base[r.bytes - 1] = 1;  // usable to its end
}

TEST_CASE("region: too small a file system: anonymous, no file left, no SIGBUS") {
  TempDir shm("/dev/shm");
  if (mount("fr-test", shm.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    WARN("skipped: cannot mount here");
    return;
  }
  {
    Mapped r(create_region(shm.path(), "x.ring", 16384));
    CHECK(r.anonymous);
    CHECK(r.why.find("No space") != std::string::npos);
    CHECK(list(r.dir).empty());
    std::memset(r.base + kHeaderBytes, 1, r.bytes - kHeaderBytes);
  }
  umount(shm.path().c_str());
}

TEST_CASE("map_file: regular files only") {
  TempDir tmp;
  write_file(tmp.path() + "/file", "content");
  write_file(tmp.path() + "/empty", "");
  REQUIRE(symlink("file", (tmp.path() + "/link").c_str()) == 0);
  REQUIRE(mkfifo((tmp.path() + "/fifo").c_str(), 0600) == 0);
  Mapping m = map_file((tmp.path() + "/file").c_str());
  REQUIRE(m.base != nullptr);
  CHECK(m.bytes == 7);
  CHECK(std::memcmp(m.base, "content", 7) == 0);
  unmap_file(m);
  CHECK(m.base == nullptr);
  for (const char* name : {"/empty", "/link", "/none", ""}) {
    Mapping none = map_file((tmp.path() + name).c_str());
    CHECK(none.base == nullptr);
    CHECK(none.fd == -1);
  }
}
