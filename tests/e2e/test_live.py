"""frtrace live on real ranks, in a real terminal."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import FRTRACE, frtrace, wait_until

TMUX = shutil.which("tmux")
in_terminal = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")


class Terminal:
    """A terminal of 100 x 30 in which a shell runs; what it shows is text()."""

    def __init__(self, scratch):
        self.command = [TMUX, "-L", scratch.name, "-f", "/dev/null"]
        self.tmux("new-session", "-d", "-x", "100", "-y", "30", "sh")

    def tmux(self, *args):
        got = subprocess.run([*self.command, *args], capture_output=True, text=True, timeout=30)
        return got.stdout

    def type(self, text):
        self.tmux("send-keys", "-l", text)

    def enter(self, text):
        self.type(text)
        self.tmux("send-keys", "Enter")

    def text(self):
        return self.tmux("capture-pane", "-p")

    def await_text(self, *parts):
        def shown():
            text = self.text()
            return text if all(part in text for part in parts) else None

        try:
            return wait_until(f"{parts} on the screen", shown)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows\n{self.text()}") from None


@pytest.fixture
def terminal(scratch):
    one = Terminal(scratch)
    yield one
    one.tmux("kill-server")


def once(scratch, *args, env=None):
    return subprocess.run(
        [FRTRACE, "live", *args, "--shm-dir", scratch / "shm"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"FR_WARN_S": "1"} | (env or {}),
    )


def test_once(launch, scratch):
    job = launch("sleep", 3, env={"FR_TIMEOUT_S": "600", "FR_WARN_S": "600"})
    job.await_live("missing")
    got = once(scratch, "job", "-1")
    assert got.returncode == 1, got
    assert "job on " in got.stdout.splitlines()[0] and ": 3 of 3 ranks" in got.stdout
    (group,) = [line for line in got.stdout.splitlines() if line.startswith("default_pg")]
    assert "all_reduce #" in group and group.endswith("rank 2 by 1"), got.stdout
    assert "rank 2 (pid " in got.stdout and "1 behind in default_pg" in got.stdout
    assert "MISSING    rank 2 never issued all_reduce" in got.stdout
    # the only job need not be named; another name is said to be none
    assert once(scratch).stdout.startswith("job on ")
    other = once(scratch, "other", "-1")
    assert (other.returncode, other.stdout) == (3, ""), other
    assert other.stderr == "frtrace: no job other has a ring here; running here: job\n"


@in_terminal
def test_keys_resize_quit(launch, scratch, terminal):
    job = launch("sleep", 3, env={"FR_TIMEOUT_S": "600", "FR_WARN_S": "600"})
    job.await_live("missing")
    terminal.enter(f"cd {scratch}; FR_WARN_S=1 {FRTRACE} live job --shm-dir shm; echo status $?")
    text = terminal.await_text("3 of 3 ranks", "MISSING    rank 2 never issued")
    assert "$ " not in text  # a screen of its own
    assert max(len(line) for line in text.splitlines()) <= 100
    terminal.type(" ")
    terminal.await_text("paused")
    terminal.type(" v")
    terminal.await_text("so far, ")
    terminal.tmux("resize-window", "-x", "60", "-y", "14")
    text = terminal.await_text("MISSING")
    assert max(len(line) for line in text.splitlines()) <= 60
    assert len(text.rstrip("\n").splitlines()) <= 14
    terminal.type("q")
    terminal.await_text("status 1")  # of the verdict, which stays
    terminal.enter("stty -a | grep -o ' echo '")
    terminal.await_text(" echo")
    assert (scratch / "shm").exists() and job.processes[0].poll() is None


@in_terminal
def test_ends_when_the_job_does(launch, scratch, terminal):
    """The verdict, of what the job left, then stays in the terminal."""
    job = launch("sleep", 3, env={"FR_TIMEOUT_S": "600", "FR_WARN_S": "600"})
    job.await_live("missing")
    terminal.enter(f"cd {scratch}; {FRTRACE} live --shm-dir shm --every 0.2; echo status $?")
    terminal.await_text("3 of 3 ranks")
    job.kill()
    text = terminal.await_text("job job has ended", "status 1")
    assert "MISSING    rank 2 never issued all_reduce" in text


# Stands in for ssh: n1 and n2 are directories of rings, and nothing else is there.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
[ -d "$NODES/$2" ] || { echo "ssh: $2: no route to host" >&2; exit 255; }
eval "exec $(echo "$3" | sed "s|$NODES/shm|$NODES/$2|")"
"""


@pytest.fixture
def over_nodes(launch, scratch, monkeypatch):
    """Ranks 0 and 1 on n1, 2 and 3 on n2; the options that lead there."""
    programs = scratch / "bin"
    for folder in (programs, scratch / "n1", scratch / "n2"):
        folder.mkdir()
    (programs / "ssh").write_text(SSH)
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("NODES", str(scratch))
    monkeypatch.setenv("FR_WARN_S", "1")
    rings = {r: {"FR_SHM_DIR": str(scratch / f"n{1 + r // 2}")} for r in range(4)}
    quiet = {"FR_JOB": f"nodes-{os.getpid()}", "FR_TIMEOUT_S": "600", "FR_WARN_S": "600"}
    job = launch("sleep", 4, env=quiet, rank_env=rings)
    wait_until(
        "the hang",
        lambda: frtrace(scratch / "n1", scratch / "n2").report.get("verdict", {}).get("ranks"),
    )
    return [job.name, "--shm-dir", str(scratch / "shm"), "--timeout", "20"]


def commands():
    """Process ids, and the words of their command lines."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(entry.name), (entry / "cmdline").read_text(errors="replace").split("\0")


def helpers(scratch):
    """What live has left on the nodes."""
    return [
        pid
        for pid, words in commands()
        if "--lines" in words and any(str(scratch) in word for word in words)
    ]


def test_once_over_nodes(over_nodes, scratch):
    """A node that does not answer is named, and hides nothing."""
    command = [FRTRACE, "live", *over_nodes, "-1", "--hosts"]
    got = subprocess.run([*command, "n1,n2"], capture_output=True, text=True, timeout=90)
    assert got.returncode == 1, got
    assert " on 2 nodes: 4 of 4 ranks" in got.stdout.splitlines()[0], got.stdout
    (group,) = [line for line in got.stdout.splitlines() if line.startswith("default_pg")]
    assert group.endswith("rank 3 by 1") and "MISSING    rank 3 never issued" in got.stdout, got
    assert helpers(scratch) == []
    got = subprocess.run([*command, "n1,n2,n3"], capture_output=True, text=True, timeout=90)
    assert got.returncode == 1, got
    assert "n3: no more news: ssh: n3: no route to host" in got.stdout, got
    assert "MISSING    rank 3 never issued" in got.stdout and helpers(scratch) == []


@in_terminal
@pytest.mark.parametrize("end", ["q", "C-c", "kill", "hang up"])
def test_leaves_nothing_on_the_nodes(over_nodes, scratch, terminal, end):
    path = f"PATH={os.environ['PATH']} NODES={scratch} FR_WARN_S=1"
    terminal.enter(f"cd {scratch}; {path} {FRTRACE} live {' '.join(over_nodes)} --hosts n1,n2")
    terminal.await_text("4 of 4 ranks", "rank 3 by 1")
    assert len(helpers(scratch)) >= 2
    if end == "hang up":
        terminal.tmux("kill-server")
    elif end == "kill":
        asked = [str(FRTRACE), "live", over_nodes[0]]
        (live,) = [pid for pid, words in commands() if words[:3] == asked]
        os.kill(live, signal.SIGKILL)
    else:
        terminal.tmux("send-keys", end)
    wait_until("the end of the nodes' helpers", lambda: not helpers(scratch))
