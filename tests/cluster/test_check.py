"""`srun frtrace check` on the two nodes: rank, world and store from Slurm's variables."""

import json
import os
import subprocess
from pathlib import Path

import cluster


def check(slurm, *args):
    cache = os.environ.get("FR_CACHE_DIR", str(Path.home() / ".cache" / "fr"))
    env = slurm.env | {"FR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    # n1 and n2 are no names of this machine's network
    env |= {"MASTER_ADDR": "127.0.0.1"}
    command = ["srun", "--quiet", "-N2", *args, cluster.FRTRACE, "check", "--slow", "0.1", "--json"]
    got = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=180)
    return got.returncode, json.loads(got.stdout or "{}"), got.stderr


def test_two_nodes_that_are_fine(slurm):
    status, report, said = check(slurm, "--ntasks-per-node=1")
    assert (status, report.get("findings")) == (0, []), (report, said)
    assert report["nodes"] == ["n1", "n2"] and report["rails"] == 1


def test_two_ranks_of_a_node_are_two_rails(slurm):
    status, report, said = check(slurm, "--ntasks-per-node=2")
    assert (status, report.get("findings")) == (0, []), (report, said)
    assert report["nodes"] == ["n1", "n2"] and report["rails"] == 2
