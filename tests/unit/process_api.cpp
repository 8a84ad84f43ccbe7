// process_api.cpp - the C ABI: options, status, the table of functions, identity.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "catch.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("options that do not parse are named on stderr, training goes on") {
  Scene scene;
  Child child = scene.start(0, {{"FR_WARN_S", "soon"}, {"TORCH_FR_BUFFER_SIZE", "lots"}}, [] {
    char value[64];
    child_group();
    fr_option("FR_WARN_S", value, sizeof value);
    return std::string(value) == "10" && fr_enabled() == 1 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.log(0).find("FR_WARN_S=soon is not understood (seconds without a unit, such as 60 or "
                          "0.5), using 10") != std::string::npos);
  CHECK(scene.log(0).find(
            "TORCH_FR_BUFFER_SIZE=lots is not understood (a whole number), using 16384") !=
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
  CHECK(api->set_tick == fr_set_tick);
  CHECK(api->capturing == fr_capturing);
  CHECK(fr_capturing() == -1);  // no CUDA here
  CHECK(std::string(fr_dtype_name(7)) == "Float");
  CHECK(std::string(fr_dtype_name(200)) == "?");
  CHECK(std::string(fr_reduce_op_name(1)) == "SUM");
  CHECK(fr_version()[0] != '\0');
}

TEST_CASE("a tick is called on the watchdog's thread") {
  Scene scene;
  Child child = scene.start(0, {}, [] {
    child_group();
    static std::atomic<int> ticks{0}, caller{0};
    fr_set_tick([] {
      caller = gettid();
      ++ticks;
      ticks.notify_all();
    });
    ticks.wait(0);
    fr_set_tick(nullptr);
    return caller != gettid() && fr_stack_here() == 0 && fr_nccl_grouped() == -1 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
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
