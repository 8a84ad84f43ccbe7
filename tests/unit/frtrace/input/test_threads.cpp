// test_threads.cpp - the threads of a dump: what is read and what is left out.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <msgpack.hpp>
#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "input/fr/threads.hpp"
#include "model/hints.hpp"
#include "thread_stacks.hpp"

using namespace frtest;

TEST_CASE("threads: what a dump says is read, and what it should not say is left out") {
  msgpack::sbuffer threads, facts;
  msgpack::packer<msgpack::sbuffer> t(threads), f(facts);
  t.pack_array(2);
  t.pack(7);  // no thread
  t.pack_map(6);
  say(t, "tid");
  t.pack(42);
  say(t, "name");
  say(t, "worker");
  say(t, "syscall");
  t.pack(12);  // wrong type
  say(t, "stack");
  t.pack(std::vector<int>{1, 0, 99});  // 99: no such frame
  say(t, "cut");
  t.pack(std::vector<int>{1, 400});
  say(t, "variables");
  t.pack_array(1);
  t.pack_array(2);
  t.pack(0);
  t.pack(std::vector<std::vector<std::string>>{{"n", "3"}});
  f.pack_map(2);
  say(f, "took_ns");
  f.pack(5000);
  say(f, "frames");
  f.pack_array(2);
  f.pack_array(5);
  say(f, "python");
  say(f, "main");
  say(f, "/home/u/train.py");
  f.pack(57);
  f.pack(0);
  f.pack_array(5);
  say(f, "native");
  say(f, "_ZN4c10d4Work4waitEv");
  say(f, "/x/libtorch_cpu.so");
  f.pack(0);
  f.pack(4096);
  std::vector<Object> parsed_threads, parsed_facts;
  REQUIRE(parse_msgpack({threads.data(), threads.size()}, parsed_threads) == Parsed::kWhole);
  REQUIRE(parse_msgpack({facts.data(), facts.size()}, parsed_facts) == Parsed::kWhole);
  const ThreadsEvidence e = read_threads(&parsed_threads.front(), &parsed_facts.front());
  REQUIRE(e.present);
  CHECK(e.took_ns == 5000);
  REQUIRE(e.threads.size() == 1);
  CHECK(e.threads[0].tid == 42);
  CHECK(e.threads[0].name == "worker");
  CHECK(e.threads[0].syscall.empty());
  CHECK(e.threads[0].stack == std::vector<std::uint32_t>{1, 0});
  CHECK(e.threads[0].cut == 400);
  REQUIRE(e.threads[0].variables.size() == 1);
  CHECK(e.threads[0].variables[0].values[0].second == "3");
  CHECK(e.frames[1].function == "c10d::Work::wait()");
  // cut off anywhere: the whole parts before the cut are read, and nothing crashes
  for (std::size_t n = 1; n < facts.size(); ++n) {
    REQUIRE(parse_msgpack({facts.data(), n}, parsed_facts) == Parsed::kCut);
    CHECK(read_threads(&parsed_threads.front(), &parsed_facts.front()).frames.size() <= 2);
  }
  CHECK_FALSE(read_threads(&parsed_threads.front(), nullptr).present);
}
