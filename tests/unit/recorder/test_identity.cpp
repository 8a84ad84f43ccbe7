// test_identity.cpp - rank, world and attempt as launchers tell them.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "catch.hpp"
#include "recorder/options.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

EnvIdentity identity(const Environment& e) {
  return read_identity([&e](const char* name) -> const char* {
    const auto it = e.find(name);
    return it != e.end() ? it->second.c_str() : nullptr;
  });
}

std::string job(const Environment& e, JobTraits traits) {
  return read_options(
             [&e](const char* name) -> const char* {
               const auto it = e.find(name);
               return it != e.end() ? it->second.c_str() : nullptr;
             },
             std::move(traits))
      .job;
}

}  // namespace

TEST_CASE("identity: a job without a launcher is named by its store and its program") {
  CHECK(job({}, {"10.0.0.1:29500", "train", "815"}) == "10-0-0-1-29500-train");
  CHECK(job({}, {"[::1]:29500", "train", "815"}) == "___1_-29500-train");
  CHECK(job({}, {"/scratch/store", "train", "815"}) == "_scratch_store-train");
  // ranks of one job have different parents on different nodes
  CHECK(job({}, {"n1:1", "train", "815"}) == job({}, {"n1:1", "train", "816"}));
  CHECK(job({}, {"n1:1", "train", ""}) != job({}, {"n1:2", "train", ""}));
  CHECK(job({}, {"n1:1", "train", ""}) != job({}, {"n1:1", "eval", ""}));
}

TEST_CASE("identity: without a store, by the process that started the ranks") {
  CHECK(job({}, {"", "train", "815"}) == "local-train-815");
  CHECK(job({}, {"", "train", "815"}) != job({}, {"", "train", "816"}));
  CHECK(job({}, {}) == "local");
  // mpirun has an id of its own; each node has another process that starts ranks
  const Environment open_mpi = {{"PMIX_NAMESPACE", "77"}, {"OMPI_COMM_WORLD_RANK", "3"}};
  CHECK(job(open_mpi, {"", "train", "815"}) == "local-train-77");
  CHECK(job({{"PMI_RANK", "3"}}, {"", "train", "815"}) == "local-train");
}

TEST_CASE("identity: what a launcher names keeps its name") {
  const JobTraits traits = {"n1:1", "train", "815"};
  CHECK(job({{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}}, traits) == "n1-29500");
  CHECK(job({{"SLURM_JOB_ID", "4242"}}, traits) == "4242");
  CHECK(job({{"FR_JOB", "mine"}}, traits) == "mine");
}

TEST_CASE("identity: long parts of a job's name keep their end and what tells them apart") {
  const std::string deep(200, 'd');
  const std::string a = job({}, {"/" + deep + "/a/store", deep + "train", "1"});
  CHECK(a.size() < 100);
  CHECK(a != job({}, {"/" + deep + "/b/store", deep + "train", "1"}));
  CHECK(a.find("_a_store-") != std::string::npos);
}

TEST_CASE("identity: two programs at once, without any name, share nothing") {
  Scene scene;
  Environment unnamed = {{"FR_JOB", ""}};
  std::vector<Child> ranks;
  for (const int rank : {0, 1}) {  // each of its own job, on the ports 1 and 2
    ranks.push_back(scene.start(rank, unnamed, [&scene, rank] {
      fr_set_job(rank == 0 ? "localhost:1" : "localhost:2", "train");
      const fr_ticket t = child_begin(child_group());
      fr_end(&t, FR_OK, nullptr);
      scene.board.cell[rank] = 1;
      while (scene.board.cell[10] == 0) {
        usleep(1000);
      }
      return 0;
    }));
  }
  REQUIRE(scene.reached(0, 1));
  REQUIRE(scene.reached(1, 1));
  std::vector<std::string> rings = scene.rings();
  std::sort(rings.begin(), rings.end());
  REQUIRE(rings.size() == 2);
  CHECK(rings[0].find("localhost-1-train.a0.r0.") == 0);
  CHECK(rings[1].find("localhost-2-train.a0.r1.") == 0);
  CHECK(list_ending(scene.ring_dir(), ".ctl").size() == 2);
  scene.board.cell[10] = 1;
  for (Child& rank : ranks) {
    CHECK(rank.wait().status == 0);
  }
}

TEST_CASE("identity: torchrun, Slurm, MPI, nothing") {
  const EnvIdentity none = identity({});
  CHECK(none.rank == -1);
  CHECK(none.local_rank == -1);
  CHECK(none.world_size == 0);
  CHECK(none.attempt == 0);
  const EnvIdentity torchrun = identity({{"RANK", "5"},
                                         {"LOCAL_RANK", "1"},
                                         {"WORLD_SIZE", "8"},
                                         {"LOCAL_WORLD_SIZE", "4"},
                                         {"TORCHELASTIC_RESTART_COUNT", "2"},
                                         {"SLURM_PROCID", "77"}});
  CHECK(torchrun.rank == 5);
  CHECK(torchrun.local_rank == 1);
  CHECK(torchrun.world_size == 8);
  CHECK(torchrun.local_world_size == 4);
  CHECK(torchrun.attempt == 2);
  const EnvIdentity slurm =
      identity({{"SLURM_PROCID", "3"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "16"}});
  CHECK(slurm.rank == 3);
  CHECK(slurm.local_rank == 0);
  CHECK(slurm.world_size == 16);
  const EnvIdentity mpi = identity({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  CHECK(mpi.rank == 2);
  CHECK(mpi.world_size == 4);
  CHECK(identity({{"RANK", "x"}}).rank == -1);
}
