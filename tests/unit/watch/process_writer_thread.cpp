// process_writer_thread.cpp - files handed to a function of the user's.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "catch.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

namespace {

Scene* g_writer_scene;  // for callbacks in children

}  // namespace

TEST_CASE("writers: a replaced file writer gets every dump instead of a file") {
  Scene scene;
  g_writer_scene = &scene;
  Child child = scene.start(0, {}, [&] {
    fr_replace_file_writer(
        [](const char* name, const void* data, size_t bytes, void* user) {
          std::ofstream out(g_writer_scene->home.path() + "/sunk", std::ios::binary);
          out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
          g_writer_scene->board.cell[1] =
              std::string(name) == "job.a0.r0.1.fr" && user == &g_writer_scene ? 1 : 2;
          return 0;
        },
        &g_writer_scene);
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
  g_writer_scene = &scene;
  Child child = scene.start(0, {}, [&] {
    fr_register_writer(
        [](const char* path, const void* data, size_t bytes, uint64_t incident, const char* reason,
           void*) {
          const std::string content(static_cast<const char*>(data), bytes);
          const bool good = content == read_file(path) &&
                            incident == g_writer_scene->board.cell[2] + 1 &&
                            std::string(reason) == "hello";
          g_writer_scene->board.cell[good ? 2 : 3].fetch_add(1);
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
  g_writer_scene = &scene;
  Child child = scene.start(0, {}, [&] {
    fr_register_writer([](const char*, const void*, size_t, uint64_t, const char*,
                          void*) { g_writer_scene->board.cell[1] = 1; },
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
  g_writer_scene = &scene;
  Child child = scene.start(0, {}, [&] {
    fr_register_writer(
        [](const char*, const void*, size_t, uint64_t, const char*, void*) {
          while (g_writer_scene->board.cell[1] == 0) {
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
