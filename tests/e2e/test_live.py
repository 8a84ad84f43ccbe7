"""frtrace live on real ranks, in a real terminal."""

import os
import shutil
import subprocess

import pytest
from conftest import FRTRACE, wait_until

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
