"""frtrace reduce --every S --lines: what a node's rings say, for a reader elsewhere."""

import json
import os
import signal
import subprocess

import pytest
from conftest import FRTRACE, frtrace, wait_until

QUIET = {"FR_TIMEOUT_S": "600", "FR_WARN_S": "600"}


def start(scratch, *args, **how):
    command = [FRTRACE, "reduce", "--every", "0.1", "--lines", "--shm-dir", scratch / "shm", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1, **how)


def read(process):
    line = process.stdout.readline()
    assert line.endswith("\n") and len(line.encode()) <= 4096, line
    return json.loads(line)


def merge(into, line):
    for key, value in line.items():
        if isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value
    return into


@pytest.fixture
def hung(launch, scratch):
    job = launch("sleep", 3, env=QUIET)
    job.await_live("missing")
    return job


@pytest.fixture
def lines(hung, scratch):
    with start(scratch, "--job", "job", stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_say_what_the_rings_say_and_then_what_changed(hung, lines, scratch):
    state = {}
    while len(state.get("ranks", {})) < 3:
        merge(state, read(lines))
    assert (state["frtrace"], state["job"], state["attempt"]) == ("lines/1", "job", 0)
    (group,) = [k for k, g in state["groups"].items() if g["desc"] == "default_pg"]
    assert state["groups"][group]["n_ranks"] == 3
    issued = {int(r): of["groups"][group][0] for r, of in state["ranks"].items()}
    behind = [rank for rank, n in issued.items() if n < max(issued.values())]
    assert behind == frtrace(scratch / "shm").verdict["ranks"] == [2]
    assert {of["pid"] for of in state["ranks"].values()} == {p.pid for p in hung.processes.values()}
    # They hang: but for a sign of life nothing more is said until one dies, and then that only. The
    # others would fail at once.
    for rank in (0, 1):
        hung.processes[rank].send_signal(signal.SIGSTOP)
    hung.processes[2].kill()
    change = read(lines)
    while "ranks" not in change:
        assert "groups" not in change, change
        change = read(lines)
    assert change["ranks"] == {"2": {"alive": False}} and "groups" not in change, change
    hung.kill()
    merge(state, change)
    while not state.get("end"):
        merge(state, read(lines))
    assert not any(of["alive"] for of in state["ranks"].values())
    assert lines.wait(timeout=30) == 0 and lines.stdout.read() == ""


@pytest.mark.parametrize("end", ["stdin", "stdout", "parent"])
def test_end_with_reader_and_parent(hung, lines, scratch, end):
    if end == "parent":
        parent = subprocess.Popen(
            ["sh", "-c", '"$@" & echo $!; wait', "sh", FRTRACE, "reduce", "--every", "60"]
            + ["--lines", "--shm-dir", scratch / "shm"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        pid, said = sorted((parent.stdout.readline() for _ in range(2)), key=lambda x: x[0] == "{")
        assert json.loads(said)["job"] == "job"
        parent.kill()
        parent.communicate()
        wait_until("the end of it", lambda: not os.path.exists(f"/proc/{int(pid)}/exe"))
        return
    read(lines)
    (lines.stdin if end == "stdin" else lines.stdout).close()
    assert lines.wait(timeout=30) == 0


def test_of_no_job(scratch):
    (scratch / "shm").mkdir(exist_ok=True)
    process = start(scratch, stdin=subprocess.DEVNULL)
    assert (process.communicate(timeout=30)[0], process.returncode) == ("", 3)
