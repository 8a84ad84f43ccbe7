"""Hangs as NCCL of each version tells them, by a host that is written without our headers: real
processes, calls in the order of NCCL's source. tests/nccl/host/hosts.py has the table.

By default the versions that differ; FR_HOST_ALL=1 takes all of them, and each case with wrappers
and the program's waits, too (two minutes).
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "nccl" / "host"))
import hosts

EVERYTHING = os.environ.get("FR_HOST_ALL", "") not in ("", "0")
VERSIONS = [v for v in hosts.VERSIONS if EVERYTHING or v not in ("2.24", "2.28", "2.29")]
# Cases that the plugin alone cannot decide, but wrappers or the program's own waits can.
MORE = {
    "never_launched": ("2.23", "2.27"),
    "never_ends": ("2.23", "2.31"),
    "silent_broadcast": ("2.30", "2.31", "2.32"),
    "broadcast_network": ("2.30",),
    "opposite_orders": ("2.23", "2.27"),
    "behind_graph": ("2.30", "2.31"),
    "after_graph": ("2.30",),
}


@pytest.fixture(scope="session")
def host(made_once):
    return made_once("nccl-host", hosts.build), hosts.libfr()


@pytest.mark.parametrize("case", hosts.PLUGIN)
def test_the_plugin_alone(host, case):
    assert hosts.run(*host, case, VERSIONS) == {}


@pytest.mark.parametrize("case", hosts.WHOLE if EVERYTHING else MORE)
def test_wrappers_and_waits_too(host, case):
    versions = VERSIONS if EVERYTHING else MORE[case]
    assert hosts.run(*host, case, versions, whole=True) == {}
