// The control page, between processes.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "catch.hpp"
#include "format/ticks.hpp"
#include "recorder/identity.hpp"
#include "sample/process.hpp"
#include "support.hpp"
#include "watch/control_page.hpp"

using namespace fr;
using namespace fr::test;

namespace {

std::string page_path(const TempDir& dir) {
  return dir.path() + "/job.a0." + std::to_string(pid_namespace()) + ".ctl";
}

void open_and_join(ControlPage& page, const std::string& dir, i32 rank, u64 first = 0) {
  page.open(dir, "job", 0, first);
  REQUIRE(page.join(getpid(), process_start(getpid()), rank, rank, "x.ring"));
}

u32 rows(const Control& page, u32 state) {
  u32 n = 0;
  for (const PeerRow& row : page.peers) {
    n += row.state == state ? 1 : 0;
  }
  return n;
}

}  // namespace

TEST_CASE("control: two processes find each other's rows") {
  TempDir dir;
  ControlPage page;
  open_and_join(page, dir.path(), 0);
  CHECK(page.own()->rank == 0);
  const pid_t child = fork();
  if (child == 0) {
    ControlPage theirs;
    theirs.open(dir.path(), "job", 0, 0);
    theirs.join(getpid(), process_start(getpid()), 1, 1, "y.ring");
    pause();
    _exit(0);
  }
  CHECK(eventually([&] { return rows(page.page(), kPeerLive) == 2; }));
  const PeerRow* other = nullptr;
  for (const PeerRow& row : page.page().peers) {
    other = row.state == kPeerLive && row.rank == 1 ? &row : other;
  }
  REQUIRE(other != nullptr);
  CHECK(other->pid == child);
  CHECK(std::string(other->ring) == "y.ring");
  CHECK_FALSE(is_dead(*other));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(is_dead(*other));
  CHECK_FALSE(is_dead(*page.own()));
}

TEST_CASE("control: the lock is free after join, so that the next one enters at once") {
  TempDir dir;
  ControlPage page;
  page.open(dir.path(), "job", 0, 0);
  const int fd = open(page_path(dir).c_str(), O_RDWR);
  REQUIRE(fd >= 0);
  CHECK(flock(fd, LOCK_EX | LOCK_NB) != 0);
  page.join(getpid(), process_start(getpid()), 0, 0, "");
  CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0);
  close(fd);
}

TEST_CASE("control: a lock that is held for ever does not hold us") {
  TempDir dir;
  {
    ControlPage first;
    open_and_join(first, dir.path(), 0);
  }
  const int fd = open(page_path(dir).c_str(), O_RDWR);
  REQUIRE(flock(fd, LOCK_EX) == 0);
  ControlPage page;
  open_and_join(page, dir.path(), 1);
  CHECK(page.own() != nullptr);
  CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0);  // and still not ours to release
  close(fd);
}

TEST_CASE("control: one process of many opens an incident, the others join it") {
  TempDir dir;
  Scene scene;
  ControlPage page;
  open_and_join(page, dir.path(), 0);
  std::vector<Child> children;
  for (int i = 1; i <= 4; ++i) {
    children.push_back(scene.start(i, {}, [&, i] {
      ControlPage theirs;
      theirs.open(dir.path(), "job", 0, 0);
      theirs.join(getpid(), process_start(getpid()), i, i, "");
      scene.board.cell[0].fetch_add(1);
      while (scene.board.cell[1] == 0) {
      }
      scene.board.cell[1 + i] = theirs.open_incident(0, i, "stuck", false);
      return 0;
    }));
  }
  REQUIRE(scene.reached(0, 4));
  scene.board.cell[1] = 1;
  for (auto& c : children) {
    CHECK(c.wait().status == 0);
  }
  for (int i = 1; i <= 4; ++i) {
    CHECK(scene.board.cell[1 + i] == 1);
  }
  CHECK(page.page().incident == 1);
  char reason[160];
  page.reason(reason, sizeof reason);
  CHECK(std::string(reason) == "stuck");
}

TEST_CASE("control: incidents count on, with join a fresh one is shared") {
  TempDir dir;
  ControlPage page;
  open_and_join(page, dir.path(), 0, 6);
  CHECK(page.page().incident == 6);
  CHECK(page.own()->dumped == 6);
  CHECK(page.open_incident(6, 0, "first", true) == 7);  // none of this run is open yet
  CHECK(page.open_incident(7, 0, "second", true) == 7);
  CHECK(page.open_incident(6, 0, "behind", false) == 7);
  CHECK(page.open_incident(7, 3, "third", false) == 8);
  CHECK(page.page().incident_rank == 3);
  page.page().incident_unix_ns = unix_now_ns() - 31'000'000'000ull;
  CHECK(page.open_incident(8, 0, "long after", true) == 9);
}

TEST_CASE("control: one rank of a node warns of a hang, not each") {
  TempDir dir;
  ControlPage page;
  ControlPage other;
  open_and_join(page, dir.path(), 1);
  open_and_join(other, dir.path(), 0);
  const u64 now = unix_now_ns();
  const u64 second = 1'000'000'000;
  char ranks[64];
  page.note_warning(now);
  other.note_warning(now + 5);
  CHECK(page.claim_warning(now + 10, second, ranks, sizeof ranks));
  CHECK(std::string(ranks) == "ranks 0,1 of this node: ");
  CHECK_FALSE(other.claim_warning(now + 20, second, ranks, sizeof ranks));
  other.note_warning(now + 2 * second);
  CHECK(other.claim_warning(now + 2 * second, second, ranks, sizeof ranks));
  CHECK(std::string(ranks).empty());  // rank 1 went on since
}

TEST_CASE("control: one rank of a node tells of its dumps") {
  TempDir dir;
  ControlPage page;
  ControlPage other;
  open_and_join(page, dir.path(), 0);
  open_and_join(other, dir.path(), 1);
  CHECK(other.claim_dump_line(3));
  CHECK_FALSE(page.claim_dump_line(3));
  CHECK_FALSE(page.claim_dump_line(2));
  CHECK(page.claim_dump_line(4));
}

TEST_CASE("control: another node's incident is followed, never backwards") {
  TempDir dir;
  ControlPage page;
  open_and_join(page, dir.path(), 0);
  CHECK(page.follow(5, 3, "incident 5 of another node"));
  CHECK(page.page().incident == 5);
  char reason[160];
  page.reason(reason, sizeof reason);
  CHECK(std::string(reason).find("another node") != std::string::npos);
  CHECK_FALSE(page.follow(3, 3, "an older one"));
  CHECK_FALSE(page.follow(5, 3, "the same"));
  CHECK(page.page().incident == 5);
  CHECK(page.page().incident_rank == 3);
  CHECK(page.page().nodes.followed == 5);
}

TEST_CASE(
    "control: a page whose ranks are all dead starts afresh, one with living ranks does not") {
  TempDir dir;
  ControlPage living;
  open_and_join(living, dir.path(), 0);
  living.open_incident(0, 0, "x", false);
  ControlPage second;
  open_and_join(second, dir.path(), 1);
  CHECK(second.page().incident == 1);
  CHECK(rows(second.page(), kPeerLive) == 2);
  for (PeerRow& row : second.page().peers) {
    row.proc_start.store(1);  // as if their processes were gone
  }
  ControlPage fresh;
  open_and_join(fresh, dir.path(), 2, 4);
  CHECK(fresh.page().incident == 4);
  CHECK(rows(fresh.page(), kPeerLive) == 1);
}

TEST_CASE("control: rows of ended ranks are used again when there is no other") {
  TempDir dir;
  ControlPage page;
  open_and_join(page, dir.path(), 0);
  for (PeerRow& row : page.page().peers) {
    if (&row != page.own()) {
      row.state = kPeerLive;
      row.pid = getpid();
      row.proc_start = process_start(getpid());
    }
  }
  ControlPage other;
  other.open(dir.path(), "job", 0, 0);
  CHECK_FALSE(other.join(getpid(), process_start(getpid()), 9, 9, ""));
  CHECK(other.own() == nullptr);
  page.page().peers[77].state = kPeerExitedClean;
  other.open(dir.path(), "job", 0, 0);
  CHECK(other.join(getpid(), process_start(getpid()), 9, 9, ""));
  CHECK(other.own() == &other.page().peers[77]);
}

TEST_CASE("control: without a directory the page is private") {
  ControlPage page;
  page.open("", "job", 0, 3);
  CHECK(page.join(getpid(), process_start(getpid()), 0, 0, ""));
  CHECK(page.page().incident == 3);
  CHECK(page.open_incident(3, 0, "x", false) == 4);
  page.remove_if_last();
  ControlPage lost;
  lost.open("/proc/fr-none", "job", 0, 0);
  CHECK(lost.join(getpid(), process_start(getpid()), 0, 0, ""));
}

TEST_CASE("control: the last rank out removes the page") {
  TempDir dir;
  ControlPage page;
  open_and_join(page, dir.path(), 0);
  page.remove_if_last();
  CHECK(exists(page_path(dir)));
  page.own()->state = kPeerExitedClean;
  page.remove_if_last();
  CHECK_FALSE(exists(page_path(dir)));
}

TEST_CASE("control: a planted symbolic link is not followed, a foreign file is taken over") {
  TempDir dir;
  write_file(dir.path() + "/victim", "precious");
  REQUIRE(symlink((dir.path() + "/victim").c_str(), page_path(dir).c_str()) == 0);
  ControlPage page;
  open_and_join(page, dir.path(), 0);
  CHECK(read_file(dir.path() + "/victim") == "precious");
  unlink(page_path(dir).c_str());
  write_file(page_path(dir), std::string(sizeof(Control), 'x'));
  ControlPage other;
  open_and_join(other, dir.path(), 0, 2);
  CHECK(other.page().incident == 2);
  CHECK(rows(other.page(), kPeerLive) == 1);
}
