// What triggers a dump by hand, where it goes, who gets it.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "catch.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

bool wait_for(const std::string& path) {
  return eventually([&] { return exists(path); });
}

// A child that has recorded something and waits.
Child start_idle(Scene& scene, const Environment& options) {
  Child child = scene.start(0, options, [&scene] {
    const fr_ticket t = child_begin(child_group());
    fr_end(&t, FR_OK, nullptr);
    scene.board.cell[0] = 1;
    while (scene.board.cell[1] == 0) {
      usleep(1000);
    }
    return 0;
  });
  REQUIRE(scene.reached(0, 1));
  return child;
}

Scene* g_scene;  // for callbacks in children

}  // namespace

TEST_CASE("dump by hand: a byte through FR_PIPE") {
  Scene scene;
  const std::string prefix = scene.home.path() + "/pipe_";
  Child child = start_idle(scene, {{"FR_PIPE", prefix}});
  REQUIRE(wait_for(prefix + "0.pipe"));
  struct stat st;
  REQUIRE(stat((prefix + "0.pipe").c_str(), &st) == 0);
  CHECK(S_ISFIFO(st.st_mode));
  for (int incident = 1; incident <= 2; ++incident) {
    // The name is there a moment before its reader; this open waits for that.
    const int fd = open((prefix + "0.pipe").c_str(), O_WRONLY);
    REQUIRE(fd >= 0);
    CHECK(write(fd, "1", 1) == 1);
    close(fd);
    REQUIRE(wait_for(scene.dump_path(0, incident)));
    CHECK(Dump::load(scene.dump_path(0, incident))["trigger"].text() == "pipe");
  }
  scene.board.cell[1] = 1;
  CHECK(child.wait().status == 0);
  CHECK_FALSE(exists(prefix + "0.pipe"));
}

TEST_CASE("dump by hand: the signal of FR_SIGNAL, and the process goes on") {
  Scene scene;
  Child child = start_idle(scene, {{"FR_SIGNAL", "USR2"}});
  for (int incident = 1; incident <= 2; ++incident) {
    child.kill(SIGUSR2);
    REQUIRE(wait_for(scene.dump_path(0, incident)));
    CHECK(Dump::load(scene.dump_path(0, incident))["trigger"].text() == "signal");
  }
  scene.board.cell[1] = 1;
  CHECK(child.wait().status == 0);
}

TEST_CASE("dump by hand: FR_SIGNAL calls the handler that was there") {
  Scene scene;
  g_scene = &scene;
  Child child = scene.start(0, {{"FR_SIGNAL", "USR1"}}, [&scene] {
    signal(SIGUSR1, [](int) { g_scene->board.cell[2].fetch_add(1); });
    child_group();
    scene.board.cell[0] = 1;
    sleep_for_ever();
    return 0;
  });
  REQUIRE(scene.reached(0, 1));
  child.kill(SIGUSR1);
  CHECK(wait_for(scene.dump_path(0, 1)));
  CHECK(scene.reached(2, 1));
}

TEST_CASE("dump by hand: fr_dump returns the path, many threads at once each get one") {
  Scene scene;
  Child child = scene.start(0, {{"FR_KEEP_DUMPS", "16"}}, [] {
    child_group();
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([&] {
        char path[4096];
        good += fr_dump("many", path, sizeof path) == 1 && exists(path) ? 1 : 0;
      });
    }
    for (auto& t : threads) {
      t.join();
    }
    return good.load();
  });
  CHECK(child.wait().status == 6);
  for (const auto& name : scene.dumps()) {
    CHECK_NOTHROW(Dump::load(scene.dump_dir + "/" + name));
  }
  CHECK(list(scene.dump_dir).size() == scene.dumps().size());  // no temporary file stays
}

TEST_CASE("writers: a replaced file writer gets every dump instead of a file") {
  Scene scene;
  g_scene = &scene;
  Child child = scene.start(0, {}, [&] {
    fr_replace_file_writer(
        [](const char* name, const void* data, size_t bytes, void* user) {
          std::ofstream out(g_scene->home.path() + "/sunk", std::ios::binary);
          out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
          g_scene->board.cell[1] =
              std::string(name) == "job.a0.r0.1.fr" && user == &g_scene ? 1 : 2;
          return 0;
        },
        &g_scene);
    child_group();
    const int ok = fr_dump("sunk", nullptr, 0);
    fr_replace_file_writer([](const char*, const void*, size_t, void*) { return 5; }, nullptr);
    const int refused = fr_dump("refused", nullptr, 0);
    fr_replace_file_writer(nullptr, nullptr);
    return ok == 1 && refused == 0 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.board.cell[1] == 1);
  CHECK(scene.dumps().empty());
  CHECK(Dump::load(scene.home.path() + "/sunk")["reason"].text() == "sunk");
}

TEST_CASE("writers: a registered writer gets the file's content after it is safe") {
  Scene scene;
  g_scene = &scene;
  Child child = scene.start(0, {}, [&] {
    fr_register_writer(
        [](const char* path, const void* data, size_t bytes, uint64_t incident, const char* reason,
           void*) {
          const std::string content(static_cast<const char*>(data), bytes);
          const bool good = content == read_file(path) && incident == g_scene->board.cell[2] + 1 &&
                            std::string(reason) == "hello";
          g_scene->board.cell[good ? 2 : 3].fetch_add(1);
        },
        nullptr);
    child_group();
    for (int i = 0; i < 3; ++i) {
      fr_dump("hello", nullptr, 0);
    }
    while (scene.board.cell[2] + scene.board.cell[3] < 3) {
      usleep(1000);
    }
    fr_register_writer(nullptr, nullptr);
    return 0;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.board.cell[2] == 3);
  CHECK(scene.board.cell[3] == 0);
}

TEST_CASE("writers: the dump at exit reaches the registered writer too") {
  Scene scene;
  g_scene = &scene;
  Child child = scene.start(0, {}, [&] {
    fr_register_writer([](const char*, const void*, size_t, uint64_t, const char*,
                          void*) { g_scene->board.cell[1] = 1; },
                       nullptr);
    child_begin(child_group());
    return 1;
  });
  CHECK(child.wait().status == 1);
  CHECK(scene.dumps().size() == 1);
  CHECK(scene.board.cell[1] == 1);
}

TEST_CASE("writers: a slow writer does not hold up dumps") {
  Scene scene;
  g_scene = &scene;
  Child child = scene.start(0, {}, [&] {
    fr_register_writer(
        [](const char*, const void*, size_t, uint64_t, const char*, void*) {
          while (g_scene->board.cell[1] == 0) {
            usleep(1000);
          }
        },
        nullptr);
    child_group();
    int good = 0;
    for (int i = 0; i < 20; ++i) {
      good += fr_dump("x", nullptr, 0);
    }
    scene.board.cell[1] = 1;
    return good;
  });
  CHECK(child.wait().status == 20);
}

TEST_CASE("dumps kept: the first and the last ones") {
  Scene scene;
  Child child = scene.start(0, {{"FR_KEEP_DUMPS", "3"}}, [] {
    child_group();
    for (int i = 0; i < 7; ++i) {
      fr_dump("x", nullptr, 0);
    }
    return 0;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.dumps() ==
        std::vector<std::string>{"job.a0.r0.1.fr", "job.a0.r0.6.fr", "job.a0.r0.7.fr"});
}

TEST_CASE("dumps kept: a dump just written is there, whatever FR_KEEP_DUMPS") {
  for (const char* keep : {"1", "2", "0"}) {
    Scene scene;
    Child child = scene.start(0, {{"FR_KEEP_DUMPS", keep}}, [] {
      child_group();
      for (int i = 0; i < 4; ++i) {
        char path[4096];
        if (fr_dump("x", path, sizeof path) != 1 || !exists(path)) {
          return i + 1;
        }
      }
      return 0;
    });
    CAPTURE(keep);
    CHECK(child.wait().status == 0);
    CHECK(exists(scene.dump_path(0, 1)));
  }
}

TEST_CASE("dumps kept: those of other ranks, attempts and jobs stay") {
  Scene scene;
  mkdir(scene.dump_dir.c_str(), 0700);
  const std::vector<std::string> foreign = {"job.a0.r1.1.fr", "job.a1.r0.1.fr", "other.a0.r0.1.fr",
                                            "notes.txt"};
  for (const auto& name : foreign) {
    write_file(scene.dump_dir + "/" + name, "x");
  }
  Child child = scene.start(0, {{"FR_KEEP_DUMPS", "2"}}, [] {
    child_group();
    for (int i = 0; i < 6; ++i) {
      fr_dump("x", nullptr, 0);
    }
    return 0;
  });
  CHECK(child.wait().status == 0);
  for (const auto& name : foreign) {
    CHECK(read_file(scene.dump_dir + "/" + name) == "x");
  }
  CHECK(scene.dumps().size() == 3 + 2);
}

TEST_CASE("an unwritable dump directory: said once, the temporary directory is used") {
  Scene scene;
  Child child = scene.start(0, {{"FR_DUMP_DIR", "/proc/fr-none"}}, [] {
    child_group();
    char path[4096];
    const bool good =
        fr_dump("a", path, sizeof path) == 1 && exists(path) && fr_dump("b", nullptr, 0) == 1;
    return good ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  const std::string dir = scene.tmp + "/fr-dumps-" + std::to_string(geteuid()) + "/job";
  CHECK(list_ending(dir, ".fr").size() == 2);
  const std::string log = scene.log(0);
  CHECK(log.find("cannot write dumps to /proc/fr-none") != std::string::npos);
  CHECK(log.find("cannot write dumps", log.find("cannot write dumps") + 1) == std::string::npos);
}

TEST_CASE("a dump directory that vanishes is made again") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    child_group();
    fr_dump("a", nullptr, 0);
    unlink(scene.dump_path(0, 1).c_str());
    rmdir(scene.dump_dir.c_str());
    return fr_dump("b", nullptr, 0) == 1 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.dumps().size() == 1);
}

TEST_CASE("no directory at all can be written: said, the process is unharmed, the ring stays") {
  Scene scene;
  Child child = scene.start(0, {{"FR_DUMP_DIR", "/proc/fr-none"}, {"TMPDIR", "/proc/fr-none"}}, [] {
    child_begin(child_group());
    return fr_dump("a", nullptr, 0) == 0 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.rings().size() == 1);
  CHECK(scene.log(0).find("cannot write dumps") != std::string::npos);
}

TEST_CASE("without FR_SHM_DIR the ring is anonymous, which the log, status and dump say") {
  Scene scene;
  Child child = scene.start(0, {{"FR_SHM_DIR", "/proc/fr-none"}}, [] {
    child_begin(child_group());
    char json[65536];
    fr_status(json, sizeof json);
    return std::string(json).find("\"memory\": \"anonymous\"") != std::string::npos ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.log(0).find("anonymous memory") != std::string::npos);
  REQUIRE(scene.dumps().size() == 1);
  CHECK(Dump::load(scene.dump_path(0, 1))["identity"]["memory"].text() == "anonymous");
}

TEST_CASE("options that do not parse are named on stderr, training goes on") {
  Scene scene;
  Child child = scene.start(0, {{"FR_WARN_S", "soon"}, {"TORCH_FR_BUFFER_SIZE", "lots"}}, [] {
    char value[64];
    child_group();
    fr_option("FR_WARN_S", value, sizeof value);
    return std::string(value) == "10" && fr_enabled() == 1 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.log(0).find("FR_WARN_S=soon is not understood, using 10") != std::string::npos);
  CHECK(scene.log(0).find("TORCH_FR_BUFFER_SIZE=lots is not understood, using 16384") !=
        std::string::npos);
}

TEST_CASE("fr_status and fr_option cut to fit and return what they need") {
  Scene scene;
  Child child = scene.start(0, {}, [] {
    child_group();
    const std::size_t need = fr_status(nullptr, 0);
    std::string json(need + 1, 'x');
    if (fr_status(json.data(), json.size()) != need || json[need] != '\0' ||
        json[need - 1] != '}') {
      return 1;
    }
    char small[8] = "xxxxxxx";
    if (fr_status(small, 4) < 100 || std::string(small) != json.substr(0, 3)) {
      return 2;
    }
    for (const char* key : {"\"on\": true", "\"ring\": ", "\"dump_dir\": ", "\"layers\": ",
                            "\"options\": ", "\"groups\": ", "\"losses\": ", "FR_BUFFER_SIZE"}) {
      if (json.find(key) == std::string::npos) {
        return 3;
      }
    }
    return fr_option("FR_JOB", small, sizeof small) == 3 && std::string(small) == "job" ? 0 : 4;
  });
  CHECK(child.wait().status == 0);
}

TEST_CASE("the table of functions for adapters is complete") {
  const fr_api* api = fr_get_api();
  CHECK(api->struct_bytes == sizeof(fr_api));
  CHECK(api->abi_version == FR_ABI_VERSION);
  CHECK(api->start == fr_start);
  CHECK(api->begin == fr_begin);
  CHECK(api->end == fr_end);
  CHECK(api->log == fr_log);
  CHECK(std::string(fr_dtype_name(7)) == "Float");
  CHECK(std::string(fr_dtype_name(200)) == "?");
  CHECK(std::string(fr_reduce_op_name(1)) == "SUM");
  CHECK(fr_version()[0] != '\0');
}

TEST_CASE("the identity that the process group tells fills what the launcher did not") {
  Scene scene;
  Child child = scene.start(0, {{"RANK", ""}, {"WORLD_SIZE", ""}, {"LOCAL_RANK", ""}}, [] {
    child_group();
    fr_set_identity(5, 8, 1);
    fr_set_identity(6, 9, 2);
    return fr_dump("x", nullptr, 0) == 1 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  REQUIRE(scene.dumps() == std::vector<std::string>{"job.a0.r5.1.fr"});
  const Dump d = Dump::load(scene.dump_path(5, 1));
  CHECK(d["identity"]["rank"].integer() == 5);
  CHECK(d["identity"]["world_size"].integer() == 8);
}
