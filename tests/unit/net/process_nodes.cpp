// Nodes as processes with ring and dump directories of their own, which meet in a store of files.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "catch.hpp"
#include "net/address.hpp"
#include "net/exchange.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// One file per key; a lock around each call.
struct FileStore {
  explicit FileStore(std::string where) : dir(std::move(where)) {}
  std::string dir;

  std::string path(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '_');
    return dir + "/" + key;
  }
  template <class Call>
  auto locked(Call call) const {
    const int fd = open((dir + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    flock(fd, LOCK_EX);
    const auto result = call();
    close(fd);
    return result;
  }
  void put(const std::string& key, const std::string& value) const {
    write_file(path(key) + ".new", value);
    rename((path(key) + ".new").c_str(), path(key).c_str());
  }
  std::string value(const std::string& key) const {
    return exists(path(key)) ? read_file(path(key)) : "";
  }

  static const FileStore& of(void* self) { return *static_cast<FileStore*>(self); }
  static i64 copy(const std::string& from, void* to, size_t room) {
    std::memcpy(to, from.data(), std::min(room, from.size()));
    return static_cast<i64>(from.size());
  }
  static int add(void* self, const char* key, int64_t amount, int64_t* sum) {
    return of(self).locked([&] {
      const std::string before = of(self).value(key);
      *sum = (before.empty() ? 0 : std::stoll(before)) + amount;
      of(self).put(key, std::to_string(*sum));
      return 0;
    });
  }
  static int set(void* self, const char* key, const void* data, size_t bytes) {
    of(self).put(key, std::string(static_cast<const char*>(data), bytes));
    return 0;
  }
  static int64_t keep(void* self, const char* key, const void* data, size_t bytes, void* value,
                      size_t room) {
    return of(self).locked([&] {
      if (of(self).value(key).empty()) {
        set(self, key, data, bytes);
      }
      return copy(of(self).value(key), value, room);
    });
  }
  static int64_t get(void* self, const char* key, void* value, size_t room) {
    return copy(of(self).value(key), value, room);
  }
  static void close_store(void* self) { delete static_cast<FileStore*>(self); }

  static fr_store store(const std::string& dir) {
    return {sizeof(fr_store), "127.0.0.1", 9, new FileStore(dir), add, set, keep, get, close_store};
  }
};

// Which rank's process does what, by the cells of the scene's board:
//   rank: 1 it records, 2 its node has the list; 10 + rank: 1 it dumps, 2 it ends
struct NodesJob {
  Scene scene;
  TempDir store{"/dev/shm"};
  TempDir shm[2]{TempDir("/dev/shm"), TempDir("/dev/shm")};

  std::string dumps(int node) const { return scene.dump_dir + std::to_string(node); }
  std::string dump(int node, int rank, int incident) const {
    return dumps(node) + "/job.a0.r" + std::to_string(rank) + "." + std::to_string(incident) +
           ".fr";
  }
  Child start(int node, int rank, int world_size, int per_node, Environment more = {}) {
    Environment env = std::move(more);
    env.insert({{"FR_SHM_DIR", shm[node].path()},
                {"FR_DUMP_DIR", dumps(node)},
                {"FR_VERDICT", "0"},
                {"LOCAL_WORLD_SIZE", std::to_string(per_node)}});
    const std::string dir = store.path();
    return scene.start(
        rank, env,
        [this, rank, world_size, dir] {
          const fr_ticket t = child_begin(child_group("0", rank, world_size));
          fr_end(&t, FR_OK, nullptr);
          const fr_store s = FileStore::store(dir);
          fr_join_nodes(&s);
          scene.board.cell[rank] = 1;
          for (u64 done = 0; scene.board.cell[10 + rank] != 2;) {
            char status[1 << 16];
            fr_status(status, sizeof status);
            if (std::strstr(status, "\"nodes\": \"UDP") != nullptr) {
              scene.board.cell[rank] = 3;
            } else if (std::strstr(status, "\"nodes\": \"another") != nullptr) {
              scene.board.cell[rank] = 2;
            }
            if (done == 0 && scene.board.cell[10 + rank] == 1) {
              done = 1;
              fr_dump("by hand", nullptr, 0);
            }
            usleep(2000);
          }
          return 0;
        },
        world_size);
  }
};

enum Does : u64 { kWaits = 1, kComputes = 2, kSleeps = 3 };

// A rank that does the board's command once its node has the list.
Child start_waiting(NodesJob& job, int rank) {
  const int node = rank / 2;
  const Environment env = {{"FR_SHM_DIR", job.shm[node].path()},
                           {"FR_DUMP_DIR", job.dumps(node)},
                           {"FR_VERDICT", "0"},
                           {"FR_WARN_S", "2"},
                           {"FR_TIMEOUT_S", "6"},
                           {"LOCAL_WORLD_SIZE", "2"}};
  return job.scene.start(
      rank, env,
      [&job, rank] {
        const fr_group_t g = child_group("0", rank, 4);
        const fr_ticket t = child_begin(g);
        fr_end(&t, FR_OK, nullptr);
        const fr_store s = FileStore::store(job.store.path());
        fr_join_nodes(&s);
        for (char status[1 << 16] = ""; std::strstr(status, "\"nodes\": \"") == nullptr;) {
          usleep(20'000);
          fr_status(status, sizeof status);
        }
        job.scene.board.cell[rank] = 1;
        while (job.scene.board.cell[10 + rank] == 0) {
          usleep(20'000);
        }
        if (job.scene.board.cell[10 + rank] == kWaits) {
          child_begin(g);
        }
        for (volatile u64 n = 0; job.scene.board.cell[10 + rank] == kComputes;) {
          n = n + 1;
        }
        sleep_for_ever();
        return 0;
      },
      4);
}

// UDP sockets that a process has open.
u32 sockets_of(pid_t pid) {
  u32 n = 0;
  const std::string own = "/proc/" + std::to_string(pid);
  const std::string table = read_file(own + "/net/udp");
  for (const std::string& fd : list(own + "/fd")) {
    char to[64] = "";
    const ssize_t bytes = readlink((own + "/fd/" + fd).c_str(), to, sizeof to - 1);
    if (bytes > 8 && std::strncmp(to, "socket:[", 8) == 0) {
      n += table.find(" " + std::string(to + 8, static_cast<std::size_t>(bytes) - 9) + " ") !=
                   std::string::npos
               ? 1
               : 0;
    }
  }
  return n;
}

constexpr int kOwner = 3, kOther = 2;

}  // namespace

TEST_CASE("nodes: an incident of one reaches the ranks of another, without a common directory") {
  NodesJob job;
  Child a = job.start(0, 0, 4, 2);
  Child b = job.start(0, 1, 4, 2);
  Child c = job.start(1, 2, 4, 2);
  Child d = job.start(1, 3, 4, 2);
  for (int rank = 0; rank < 4; ++rank) {
    REQUIRE(job.scene.reached(rank, kOther));
  }
  CHECK(sockets_of(a.pid()) + sockets_of(b.pid()) == 1);
  CHECK(sockets_of(c.pid()) + sockets_of(d.pid()) == 1);
  job.scene.board.cell[13] = 1;
  for (int rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    REQUIRE(wait_for(job.dump(rank / 2, rank, 1)));
  }
  const Dump told = Dump::load(job.dump(0, 0, 1));
  CHECK(told["trigger"].text() == "peer");
  CHECK(told["reason"].text().find("rank 3: node ") == 0);
  CHECK(told["reason"].text().find("by hand") != std::string::npos);
  CHECK(told["nodes"].is_nil());  // it informed no node
  for (int rank : {2, 3}) {
    const Dump own = Dump::load(job.dump(1, rank, 1));
    if (job.scene.board.cell[rank] == kOwner) {
      CHECK(own["nodes"]["nodes"].natural() == 2);
      CHECK(own["nodes"]["asked"].natural() == 1);
      CHECK(own["nodes"]["answered"].natural() == 1);
      CHECK(own["nodes"]["unanswered"].size() == 0);
    } else {
      CHECK(own["nodes"].is_nil());
    }
  }
}

TEST_CASE("nodes: one that does not answer is named in the dump, which waits no second for it") {
  NodesJob job;
  Child a = job.start(0, 0, 3, 1);
  Child b = job.start(1, 1, 3, 2);
  Child c = job.start(1, 2, 3, 2);
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(job.scene.reached(rank, kOther));
  }
  b.kill(SIGSTOP);
  c.kill(SIGSTOP);
  job.scene.board.cell[10] = 1;
  REQUIRE(wait_for(job.dump(0, 0, 1)));
  const Dump dump = Dump::load(job.dump(0, 0, 1));
  CHECK(dump["nodes"]["answered"].natural() == 0);
  CHECK(dump["nodes"]["took_ns"].natural() < 1'000'000'000);
  REQUIRE(dump["nodes"]["unanswered"].size() == 1);
  const Node node = dump["nodes"]["unanswered"][0];
  CHECK_FALSE(node[0].text().empty());
  CHECK(node[1].integer() == 1);
  CHECK(node[2].natural() == 2);
  CHECK(node[3].natural() == 1);
  b.kill(SIGCONT);
  c.kill(SIGCONT);
  CHECK(wait_for(job.dump(1, 1, 1)));  // the datagram was kept until it could be read
}

TEST_CASE("nodes: where the owner of the endpoint is killed or stopped, another rank takes over") {
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  NodesJob job;
  Child a = job.start(0, 0, 3, 1);
  std::vector<Child> others;
  for (int rank : {1, 2}) {
    others.push_back(job.start(1, rank, 3, 2));
  }
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(job.scene.reached(rank, kOther));
  }
  const int owner = job.scene.board.cell[1] == kOwner ? 1 : 2;
  others[static_cast<std::size_t>(owner - 1)].kill(signal);
  REQUIRE(job.scene.reached(3 - owner, kOwner));
  job.scene.board.cell[10] = 1;
  REQUIRE(wait_for(job.dump(1, 3 - owner, 1)));
  CHECK(Dump::load(job.dump(1, 3 - owner, 1))["reason"].text().find("rank 0: node ") == 0);
  REQUIRE(wait_for(job.dump(0, 0, 1)));  // it waits for its answers first
  CHECK(Dump::load(job.dump(0, 0, 1))["nodes"]["answered"].natural() == 1);
  if (signal == SIGSTOP) {  // it gives the endpoint up
    Child& stopped = others[static_cast<std::size_t>(owner - 1)];
    stopped.kill(SIGCONT);
    CHECK(eventually([&] { return sockets_of(stopped.pid()) == 0; }));
  }
}

TEST_CASE("nodes: who has not come on another node, and what it does, is known on both") {
  struct Case {
    u64 does;
    const char* said;
  };
  const Case c = GENERATE(Case{kWaits, "; all members have come"},
                          Case{kComputes, "; rank 3 has not come, it computes"},
                          Case{kSleeps, "; rank 3 has not come;"});
  NodesJob job;
  std::vector<Child> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(start_waiting(job, rank));
  }
  for (int rank = 0; rank < 4; ++rank) {
    REQUIRE(job.scene.reached(rank, 1));
  }
  for (int rank = 0; rank < 4; ++rank) {
    job.scene.board.cell[10 + rank] = rank == 3 ? c.does : kWaits;
  }
  REQUIRE(wait_for(job.dump(0, 0, 1)));
  const std::string reason = Dump::load(job.dump(0, 0, 1))["reason"].text() + ";";
  CAPTURE(reason, c.does);
  CHECK(reason.find(c.said) != std::string::npos);
}

TEST_CASE("nodes: no socket in a job of one node, with FR_TRIGGER=dir or off") {
  NodesJob job;
  const int world_size = GENERATE(1, 2, 3);
  // For two ranks the launcher says how many run on a node; for three only counting them shows it.
  const Environment env = world_size == 3 ? Environment{{"LOCAL_WORLD_SIZE", "0"}} : Environment{};
  std::vector<Child> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(job.start(0, rank, world_size, world_size, env));
  }
  for (int rank = 0; rank < world_size; ++rank) {
    REQUIRE(job.scene.reached(rank, 1));
  }
  job.scene.board.cell[10] = 1;
  REQUIRE(wait_for(job.dump(0, world_size - 1, 1)));
  for (const Child& rank : ranks) {
    CHECK(sockets_of(rank.pid()) == 0);
  }
}

TEST_CASE("nodes: FR_TRIGGER=dir and off leave other nodes to the directory and to themselves") {
  const std::string trigger = GENERATE("dir", "off");
  NodesJob job;
  Environment env = {{"FR_TRIGGER", trigger}};
  Environment same_dumps = env;
  same_dumps["FR_DUMP_DIR"] = job.dumps(0);
  Child a = job.start(0, 0, 2, 1, env);
  Child b = job.start(1, 1, 2, 1, same_dumps);
  REQUIRE(job.scene.reached(0, 1));
  REQUIRE(job.scene.reached(1, 1));
  CHECK(list(job.store.path()).empty());
  job.scene.board.cell[10] = 1;
  REQUIRE(wait_for(job.dump(0, 0, 1)));
  if (trigger == "dir") {
    CHECK(wait_for(job.dump(0, 1, 1)));
  } else {
    CHECK_FALSE(eventually([&] { return exists(job.dump(0, 1, 1)); }, 1.5));
  }
  CHECK(sockets_of(a.pid()) + sockets_of(b.pid()) == 0);
}

TEST_CASE("nodes: a store that hangs holds up neither the start nor a dump nor the exit") {
  Scene scene;
  const Environment env = {{"LOCAL_WORLD_SIZE", "1"}, {"FR_VERDICT", "0"}};
  Child child = scene.start(
      0, env,
      [&scene] {
        child_group();
        fr_store s = FileStore::store("/nowhere");
        s.add = [](void*, const char*, int64_t, int64_t*) { return pause(); };
        fr_join_nodes(&s);
        const fr_ticket t = child_begin(child_group());
        fr_end(&t, FR_OK, nullptr);
        return fr_dump("by hand", nullptr, 0) == 1 ? 0 : 1;
      },
      2);
  const Ending end = child.wait(20);
  CHECK(end.exited);
  CHECK(end.status == 0);
  CHECK(exists(scene.dump_path(0, 1)));
}

TEST_CASE("nodes: a store that fails leaves the job as it was") {
  NodesJob job;
  Child a = job.scene.start(
      0, {{"LOCAL_WORLD_SIZE", "1"}},
      [&job] {
        child_group();
        fr_store s = FileStore::store("/nowhere");
        s.add = [](void*, const char*, int64_t, int64_t*) { return -1; };
        fr_join_nodes(&s);
        for (int i = 0; i < 10'000; ++i) {
          char status[1 << 16];
          fr_status(status, sizeof status);
          if (std::strstr(status, "the store does not answer") != nullptr) {
            return 0;
          }
          usleep(1000);
        }
        return 1;
      },
      2);
  CHECK(a.wait().status == 0);
}

TEST_CASE("nodes: a forked child has no part in its parent's endpoint") {
  NodesJob job;
  Child a = job.scene.start(
      0, {{"LOCAL_WORLD_SIZE", "1"}, {"FR_SHM_DIR", job.shm[0].path()}},
      [&job] {
        child_group("0", 0, 2);
        const fr_store s = FileStore::store(job.store.path());
        fr_join_nodes(&s);
        while (job.scene.board.cell[10] == 0) {
          usleep(1000);
        }
        const pid_t child = fork();
        if (child == 0) {  // as a DataLoader's worker: it ends while the parent goes on
          fr_shutdown(0);
          exit(0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        job.scene.board.cell[0] = 5;
        while (job.scene.board.cell[10] != 2) {
          usleep(1000);
        }
        return status;
      },
      2);
  Child b = job.start(1, 1, 2, 1);
  REQUIRE(job.scene.reached(1, kOwner));
  job.scene.board.cell[10] = 1;
  REQUIRE(job.scene.reached(0, 5));
  job.scene.board.cell[11] = 1;
  REQUIRE(wait_for(job.dump(1, 1, 1)));
  CHECK(Dump::load(job.dump(1, 1, 1))["nodes"]["answered"].natural() == 1);
  job.scene.board.cell[10] = 2;
  CHECK(a.wait().status == 0);
}

TEST_CASE("nodes: of the interfaces those that the variable names count") {
  CHECK(net::is_named("eth0", "eth"));
  CHECK(net::is_named("eth0", "ib,eth0"));
  CHECK(net::is_named("eth0", "=eth0"));
  CHECK_FALSE(net::is_named("eth0", "=eth"));
  CHECK_FALSE(net::is_named("eth0", "^eth0"));
  CHECK_FALSE(net::is_named("eth0", ""));
  CHECK_FALSE(net::is_named("eth0", "ib,,veth"));
}

TEST_CASE("nodes: the address is the one that leads to the store") {
  const net::Address v4 = net::own_address("127.0.0.1", 9, "");
  CHECK(v4.is_known);
  CHECK(v4.is_loopback);
  CHECK(net::text_of(v4) == "127.0.0.1");
  const net::Address by_name = net::own_address("127.0.0.1", 9, "=lo");
  CHECK(net::text_of(by_name) == "127.0.0.1");
  CHECK_FALSE(net::own_address("no.such.host.invalid", 9, "").is_known);
}
