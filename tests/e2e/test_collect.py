"""frtrace collect on this machine: a summary first, then all that the ranks in question left. Over
nodes: tests/cluster."""

import json
import os
import subprocess

import pytest
from conftest import FRTRACE

# A name of its own: rings are found wherever processes of this user say that theirs are.
NAME = f"collected-{os.getpid()}"
QUIET = {"FR_JOB": NAME, "FR_TIMEOUT_S": "600", "FR_WARN_S": "600"}


def collect(scratch, *args):
    got = subprocess.run(
        [FRTRACE, "collect", NAME, "--launcher", "local", "--json", "-o", scratch / "c"]
        + ["--shm-dir", scratch / "shm", *args],
        capture_output=True,
        text=True,
        timeout=60,
    )
    (node,) = [p for p in (scratch / "c").iterdir() if p.is_dir()]
    return got, json.loads(got.stdout), sorted(p.name for p in node.iterdir())


@pytest.mark.parametrize("whole", [False, True])
def test_of_running_ranks(launch, scratch, whole):
    job = launch("skip", 6, env=QUIET)
    job.await_live("missing")
    got, report, files = collect(scratch, *(["--whole"] if whole else []))
    assert got.returncode == 1, got
    assert (report["verdict"]["kind"], report["verdict"]["ranks"]) == ("missing", [5]), got
    assert (report["input"]["read"], report["input"]["expected"]) == (6, 6)
    rings = [name for name in files if name.endswith(".ring")]
    assert any(".r5." in name for name in rings)  # the guilty one's, whole
    assert not any("dead" in name for name in rings)
    assert len(rings) == 6 if whole else len(rings) < 6, files
    assert whole != any(name.endswith(".frsum") for name in files), files
    said = "whole by local" in got.stderr
    assert said != whole, got.stderr


def test_of_killed_ranks(launch, scratch):
    """Who reads their rings elsewhere cannot look whether they live: the names say it."""
    job = launch("skip", 3, env=QUIET)
    job.await_live("missing")
    job.kill()
    got, report, files = collect(scratch)
    assert (got.returncode, report["verdict"]["ranks"]) == (1, [2]), got
    rings = [name for name in files if name.endswith(".ring")]
    assert rings and all(name.endswith(".dead.ring") for name in rings), files
