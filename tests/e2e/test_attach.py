"""`frtrace attach`: expressions in frames of ranks that wait, sleep, hang; fr.breakpoint()."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import interpreters
import one_process
import pytest
from conftest import FRTRACE, wait_until

interpreter = interpreters.interpreter  # each CPython of this machine
native_lib = one_process.native_lib
start = one_process.start

RANK = """
def prepare():
    fr.group("g", 1)  # starts the recorder
class Loader:
    def __init__(self):
        self.items = list(range(300)); self.path = "/data/part-7"
    def wait(self, how):
        step = 41
        how()
def main(how):
    loader = Loader()
    loader.wait(how)
prepare()
"""
SLEEP = RANK + "def how():\n    ready(); time.sleep(600)\nmain(how)\n"
ON = {"FR_ATTACH": "1"}


def attach(p, *args, rank=0, text=None, limit_s=60):
    command = [FRTRACE, "attach", "job", "--rank", str(rank), "--shm-dir", str(p.dir / "shm")]
    return subprocess.run(
        [*command, *args], input=text, capture_output=True, text=True, timeout=limit_s
    )


def value(p, expression, *args):
    got = attach(p, "-e", expression, *args)
    assert got.returncode == 0 and not got.stderr, got
    return got.stdout.rstrip("\n")


def refusal(p, expression, *args):
    got = attach(p, "-e", expression, *args)
    assert got.returncode == 1 and not got.stdout, got
    return got.stderr


WAITS = {
    "sleep": "ready(); time.sleep(600)",
    "lock": "ready(); a = threading.Lock(); a.acquire(); a.acquire()",
    "recv": "import socket; s, t = socket.socketpair(); ready(); s.recv(1)",
    "busy": "ready()\n    while True: pass",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_waiting_main_thread(start, wait):
    p = start(RANK + f"def how():\n    {WAITS[wait]}\nmain(how)\n", ON).ready()
    assert value(p, "[n * 2 for n in (1, 2)]") == "[2, 4]"
    frame = next(
        line.split("#")[1].split()[0]
        for line in attach(p, text="bt\n").stdout.splitlines()
        if "wait() at" in line
    )
    assert value(p, "self.path, step", "--frame", frame) == "('/data/part-7', 41)"
    assert value(p, "len(self.items)", "--frame", frame) == "300"


def test_the_default_frame_is_the_users(start):
    p = start(RANK + "def how():\n    ready(); threading.Event().wait()\nmain(how)\n", ON).ready()
    got = attach(p, text="bt\nthreads\n").stdout
    (chosen,) = [line for line in got.splitlines() if line.startswith("-> #")]
    assert re.search(r"how\(\) at .*target\.py:\d+", chosen), got
    assert "MainThread: how() at" in got and "fr-attach" not in got, got


def test_other_threads(start):
    script = "def other():\n    mine = 'of the other'; ready(); time.sleep(600)\n"
    script += "threading.Thread(target=other, name='loader').start()\ntime.sleep(600)\n"
    p = start(RANK + script, ON).ready()
    assert value(p, "mine", "--thread", "loader") == "'of the other'"
    assert "no thread nobody" in refusal(p, "mine", "--thread", "nobody")


def test_expressions_only_and_on_a_copy(start):
    p = start(SLEEP.replace("ready();", "left = 3; ready();"), ON).ready()
    assert "--exec" in refusal(p, "left = 4")
    assert "--exec" in refusal(p, "(left := 4)")
    assert "NameError" in refusal(p, "nothing")
    assert value(p, "left = 4\nprint('x', left)\nleft + 1", "--exec") == "x 4\n5"
    assert value(p, "left") == "3"
    assert "could wait for a device" in refusal(p, "torch.cuda.synchronize()")
    log = p.log.read_text()
    assert re.search(r"^\[fr .*\] .*frtrace attach \(process \d+\) evaluates: left$", log, re.M), (
        log
    )
    assert "executes: left = 4" in log
    got = subprocess.run(
        [FRTRACE, "--json", str(p.dir / "shm")], capture_output=True, text=True
    ).stdout
    assert "frtrace attach (process" in got, got


def test_limits_of_time_and_output(start):
    p = start(SLEEP, ON).ready()
    began = time.monotonic()
    assert "no answer within 5 s: it was stopped" in refusal(p, "[0 for n in iter(int, 1) if n]")
    assert time.monotonic() - began > 5
    assert "it goes on" in refusal(p, "time.sleep(30)")
    got = value(p, "'y' * 200000")
    assert got.startswith("'yyy") and got.endswith("... cut, 200002 bytes in all"), got[-99:]
    assert len(got) < 66_000
    assert value(p, "1 + 1") == "2"


def test_two_at_once(start):
    p = start(SLEEP, ON).ready()
    first = subprocess.Popen(
        [FRTRACE, "attach", "job", "--rank", "0", "--shm-dir", p.dir / "shm"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        first.stdin.write("1 + 1\n")
        first.stdin.flush()
        assert first.stdout.readline() == "2\n"
        assert value(p, "2 + 2") == "4"
        assert first.communicate("3 + 3\n", timeout=60)[0] == "6\n"
    finally:
        first.kill()
        first.wait()


def test_the_gil_is_held_for_ever(start):
    script = "def how():\n    batch = [1] * 9; part = 'x-7'; ready(); holding.hold()\nmain(how)\n"
    p = start(RANK + script, ON).ready().await_calls("pause")
    got = attach(p, "-e", "part")
    assert got.returncode == 0 and got.stdout == "'x-7'\n", got
    assert "does not get the GIL: thread" in got.stderr and "has it" in got.stderr, got
    assert attach(p, "-e", "len(batch)").stdout == "9\n"
    got = attach(p, "-e", "part.upper()")
    assert got.returncode == 1 and "part = 'x-7'" in got.stdout, got
    frame = next(
        line.split("#")[1].split()[0]
        for line in attach(p, text="bt\n").stdout.splitlines()
        if "wait" in line
    )
    assert attach(p, "-e", "self.path", "--frame", frame).stdout == "'/data/part-7'\n"


def test_off_unless_asked_for(start):
    p = start(SLEEP).ready()
    got = attach(p, "-e", "1")
    assert got.returncode == 3 and "start the job with FR_ATTACH=1" in got.stderr, got
    assert got.stderr.count("\n") == 1
    assert not list((p.dir / "shm").rglob("*.attach"))
    assert "fr-attach" not in {
        t.read_text().strip() for t in Path(f"/proc/{p.pid}/task").glob("*/comm")
    }
    got = attach(p, "-e", "1", rank=5)
    assert got.returncode == 3 and "no rank 5 of a job job runs on this node" in got.stderr


def test_the_debugger_ends_at_c_and_the_process_goes_on(start):
    script = "def how():\n    here = 7; ready(); fr.breakpoint()\n    time.sleep(600)\nmain(how)\n"
    p = start(RANK + script).ready()
    wait_until("fr.breakpoint()", lambda: "waits at" in p.log.read_text())
    got = attach(p, "--pdb", text="p here\nup\np self.path\nc\n")
    assert got.returncode == 0 and "rank 0 goes on" in got.stderr, got
    assert "(pdb) 7\n" in got.stdout and "(pdb) '/data/part-7'\n" in got.stdout, got
    assert p.process.poll() is None
    got = attach(p, "--pdb")
    assert got.returncode == 3 and "not in fr.breakpoint()" in got.stderr, got


def sockets(p):
    return list((p.dir / "shm").rglob("*.attach"))


def test_the_socket_is_private_and_ends_with_the_process(start):
    p = start(SLEEP, ON).ready()
    (path,) = sockets(p)
    assert path.stat().st_mode & 0o777 == 0o600
    p.process.kill()
    p.process.wait()
    assert sockets(p) == [path]
    (p.dir / "ready").unlink()
    q = start(RANK + "ready()\n", ON)
    wait_until("its end", lambda: q.process.poll() is not None)
    assert not sockets(p), "its own, and that of the one that was killed"


def test_clean_removes_the_socket_of_a_dead_rank(start):
    p = start(SLEEP, ON).ready()
    clean = [FRTRACE, "--clean"]
    env = os.environ | {"FR_SHM_DIR": str(p.dir / "shm")}
    subprocess.run(clean, env=env, check=True, stdout=subprocess.DEVNULL)
    assert sockets(p)
    p.process.kill()
    p.process.wait()
    subprocess.run(clean, env=env, check=True, stdout=subprocess.DEVNULL)
    assert not sockets(p)


def test_another_user_is_refused(start):
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    p = start(SLEEP, ON).ready()
    (path,) = sockets(p)
    for folder in (p.dir, *path.relative_to(p.dir).parents):
        (p.dir / folder).chmod(0o755)
    path.chmod(0o666)

    asked = """if True:
        import os, socket, sys
        os.setgid(12345); os.setuid(12345)
        s = socket.socket(socket.AF_UNIX)
        s.connect(sys.argv[1])
        print(s.makefile().readline())
    """
    got = subprocess.run([sys.executable, "-c", asked, path], capture_output=True, text=True)
    assert "user 12345 is not this process's user 0" in got.stdout, got


def test_a_forked_child_does_not_answer(start):
    child = "    open('child', 'w').write(str(os.getpid())); time.sleep(600)\n"
    p = start(RANK + "if os.fork() == 0:\n" + child + "ready(); time.sleep(600)\n", ON).ready()
    forked = wait_until(
        "the child", lambda: (p.dir / "child").exists() and (p.dir / "child").read_text()
    )
    try:
        assert value(p, "os.getpid()") == str(p.pid)
        p.process.kill()
        p.process.wait()
        (path,) = sockets(p)
        with socket.socket(socket.AF_UNIX) as s, pytest.raises(ConnectionRefusedError):
            s.connect(str(path))
    finally:
        os.kill(int(forked), signal.SIGKILL)


def test_nonsense_and_long_requests(start):
    p = start(SLEEP, ON).ready()
    (path,) = sockets(p)
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
        lines = s.makefile("r")
        assert json.loads(lines.readline()) == {"hello": p.pid}
        for sent in (b"{\n", b'{"do": "no"}\n', b'{"do": "eval", "text": 7}\n'):
            s.sendall(sent)
            assert lines.readline().startswith("{")
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.sendall(b"x" * 70000)
        assert lines.readline() == ""
    assert value(p, "1 + 1") == "2"
