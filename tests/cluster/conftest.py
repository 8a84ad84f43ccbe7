"""Not part of `make test`: `make test-cluster` runs these, as root, with Debian's Slurm, sshd, pdsh
and ClusterShell. What is not there is skipped and named."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import cluster
import pytest

# Where packages install programs that only the tests of this folder need.
NEEDS = {
    "slurm": ("slurmctld", "slurmd", "munged", "srun", "squeue", "scontrol"),
    "sshds": ("sshd", "ssh", "ssh-keygen"),
}


def need(*programs):
    missing = [p for p in programs if not cluster.find(p)]
    if missing:
        pytest.skip(f"not installed: {' '.join(missing)}")
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("namespaces need root")


@pytest.fixture(scope="session")
def scratch():
    """Short (sockets' paths are limited) and readable by all, as munged wants it."""
    path = Path(tempfile.mkdtemp(prefix="fr-cluster-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    left = cluster.left_below(path)
    shutil.rmtree(path, ignore_errors=True)
    assert not left, f"processes left: {left}"


def started(kind, scratch, name):
    need("unshare", "nsenter", *NEEDS[name])
    home = scratch / name
    home.mkdir(mode=0o755)
    one = object.__new__(kind)
    try:
        one.__init__(home)
        yield one
    finally:
        one.close()


@pytest.fixture(scope="session")
def slurm(scratch):
    yield from started(cluster.Slurm, scratch, "slurm")


@pytest.fixture(scope="session")
def sshds(scratch):
    yield from started(cluster.Sshds, scratch, "sshds")
