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

}  // namespace

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
