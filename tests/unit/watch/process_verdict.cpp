// process_verdict.cpp - which rank starts frtrace, with what, and torchrun's error file. A script
// stands for frtrace; tests/e2e/test_verdict.py has the real one.
#include <signal.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "catch.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

namespace {

struct WithFrtrace {
  Scene scene;
  std::string started = scene.home.path() + "/started";
  std::string bin = scene.home.path() + "/bin";

  WithFrtrace() {
    mkdir(bin.c_str(), 0700);
    const std::string program = bin + "/frtrace";
    write_file(program, "#!/bin/sh\necho \"$@\" >> " + started + "\necho 'EXITED rank 9' > " +
                            scene.dump_dir + "/new.tmp\necho 'attempt 0, incident 1' >> " +
                            scene.dump_dir + "/new.tmp\nmv " + scene.dump_dir + "/new.tmp " +
                            scene.dump_dir + "/job.verdict.txt\n");
    chmod(program.c_str(), 0700);
  }
  Environment options(int rank) const {
    Environment out = kFast;
    out["PATH"] = bin + ":/usr/bin:/bin";
    out["TORCHELASTIC_ERROR_FILE"] = error_file(rank);
    return out;
  }
  std::string error_file(int rank) const {
    return scene.home.path() + "/error." + std::to_string(rank) + ".json";
  }
  std::size_t starts() const {
    const std::string text = read_file(started);
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  std::string callstack(int rank) const {
    return nlohmann::json::parse(
        read_file(error_file(rank)))["message"]["extraInfo"]["py_callstack"];
  }
};

}  // namespace

TEST_CASE("verdict: the lowest rank of the node starts frtrace, once for an incident") {
  WithFrtrace w;
  Child first = start_rank(w.scene, 0, w.options(0), 2);
  Child second = start_rank(w.scene, 1, w.options(1), 2);
  w.scene.board.cell[11] = 1;  // rank 1 hangs, rank 0 is elsewhere
  REQUIRE(eventually([&] { return exists(w.started); }));
  REQUIRE(wait_for(w.scene.dump_path(0, 1)));
  REQUIRE(wait_for(w.scene.dump_path(1, 1)));
  const std::string text = read_file(w.started);
  CHECK(text.find("verdict --job job --attempt 0 --incident 1 --world-size 2 --rank 0 "
                  "--node-size 2 --here 0,0,1 --host ") == 0);
  CHECK(text.find(" --quiet=false " + w.scene.dump_dir) != std::string::npos);
  CHECK(w.starts() == 1);
}

TEST_CASE("verdict: FR_VERDICT=0 starts nothing") {
  WithFrtrace w;
  Environment off = w.options(0);
  off["FR_VERDICT"] = "0";
  Child rank = start_rank(w.scene, 0, off, 1);
  w.scene.board.cell[10] = 1;
  REQUIRE(wait_for(w.scene.dump_path(0, 1)));
  rank.kill(SIGTERM);
  CHECK(rank.wait().signal == SIGTERM);
  CHECK_FALSE(exists(w.started));
  CHECK(w.callstack(0).find("was ended by SIGTERM") != std::string::npos);
  CHECK(w.callstack(0).find("verdict: frtrace " + w.scene.dump_dir) != std::string::npos);
}

// TSan loses track of the synchronisation of a thread that has shared its memory with a process.
#ifndef __SANITIZE_THREAD__
TEST_CASE("verdict: one rank's error file has the verdict, the others have their own line") {
  WithFrtrace w;
  Child first = start_rank(w.scene, 0, w.options(0), 2);
  Child second = start_rank(w.scene, 1, w.options(1), 2);
  w.scene.board.cell[10] = 1;
  w.scene.board.cell[11] = 1;
  REQUIRE(eventually([&] { return exists(w.scene.dump_dir + "/job.verdict.txt"); }));
  first.kill(SIGTERM);
  second.kill(SIGTERM);
  CHECK(first.wait().signal == SIGTERM);
  CHECK(second.wait().signal == SIGTERM);
  CHECK(w.callstack(0).find("with broadcast #2 of default_pg") != std::string::npos);
  CHECK(w.callstack(0).find("EXITED rank 9") != std::string::npos);
  CHECK(w.callstack(1).find("EXITED rank 9") == std::string::npos);
  CHECK(w.callstack(1).find("verdict: frtrace ") != std::string::npos);
}
#endif

TEST_CASE("verdict: an error file that is there stays, a clean exit leaves none") {
  WithFrtrace w;
  write_file(w.error_file(0), "the user's own");
  Child rank = start_rank(w.scene, 0, w.options(0), 1);
  Child clean = start_rank(w.scene, 1, w.options(1), 1);
  w.scene.board.cell[11] = 2;
  CHECK(clean.wait().status == 0);
  CHECK_FALSE(exists(w.error_file(1)));
  rank.kill(SIGTERM);
  CHECK(rank.wait().signal == SIGTERM);
  CHECK(read_file(w.error_file(0)) == "the user's own");
}
