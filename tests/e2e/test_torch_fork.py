"""A rank forked from a process that has imported torch works as one with its own interpreter."""

import functools
import json
import os
import select
import signal
import subprocess
import sys

import pytest
import torch_fork

SCRIPT = """
import torch
import ctypes, json, os, signal, sys

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
main = sys.modules["__main__"]
told = {
    "argv": [sys.argv, sys.path, sys.orig_argv],
    "main": [__name__, __file__, main.__dict__ is globals(), sorted(globals())],
    "files": sorted(os.listdir("/proc/self/fd")),
    "standard": [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)],
    "streams": [
        [s.fileno(), s.mode, s.name, s.encoding, s.errors, s.line_buffering, s.write_through]
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "same": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "environment": [dict(os.environ), str(libc.getenv(b"E2E_OWN")), str(libc.getenv(b"E2E_GONE"))],
    "signals": [str(signal.getsignal(n)) for n in range(1, 32)],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "place": [os.getcwd(), os.getppid(), os.getpgid(0), os.getsid(0), os.getpriority(0, 0)],
    "threads": len(os.listdir("/proc/self/task")),
    "fr": [name for name in sys.modules if name.split(".")[0] == "fr"],
}
print(json.dumps(told))
sys.stdout.flush()
exec(sys.argv[1])
"""
ENDS = {
    "pass": 0,
    "sys.exit(3)": 3,
    "os._exit(4)": 4,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "raise ValueError('x')": 1,
    "os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "os.abort()": -signal.SIGABRT,
}


@pytest.fixture
def start(scratch, monkeypatch):
    monkeypatch.setenv("E2E_GONE", "1")
    script = scratch / "script.py"
    script.write_text(SCRIPT)

    def run(kind, end, *options, stderr="stderr"):
        env = {k: v for k, v in torch_fork.base_environment().items() if k != "E2E_GONE"}
        env["E2E_OWN"] = "own"
        command = [sys.executable, *options, str(script), end]
        assert torch_fork.fits(command, env)
        with (scratch / stderr).open("w") as file:
            return kind(
                command, env=env, cwd=scratch, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file,
            )  # fmt: skip

    return run


def ended(process):
    told = json.loads(process.communicate(timeout=90)[0])
    told["standard"][1] = told["standard"][1].split(":")[0]  # the number of a pipe
    return told, process.returncode


def fresh_process(*args, **kwargs):
    """As Job starts one: a shell that runs the tests in the background leaves SIGINT ignored."""
    default = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(*args, preexec_fn=default, **kwargs)


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_a_forked_rank_is_as_a_fresh_one(start, options):
    fresh, forked = (
        ended(start(kind, "pass", *options)) for kind in (fresh_process, torch_fork.Forked)
    )
    assert fresh[1] == forked[1] == 0
    for what, told in fresh[0].items():
        assert forked[0][what] == told, what
    assert forked[0]["place"][1] == os.getpid() and forked[0]["fr"] == []


def test_ends_are_told_as_they_were(start, scratch):
    started = {end: start(torch_fork.Forked, end) for end in ENDS}
    assert {end: ended(process)[1] for end, process in started.items()} == ENDS
    stopped = start(torch_fork.Forked, "signal.pause()")
    assert stopped.stdout.readline() and stopped.poll() is None
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(timeout=60) == -signal.SIGTERM
    stopped.stdout.close()


def test_what_counts_before_torch_is_no_case_for_a_fork(scratch):
    script = scratch / "script.py"
    script.write_text("import os, torch\nimport fr\n")
    env = torch_fork.base_environment()
    command = [sys.executable, str(script)]
    assert torch_fork.fits(command, env | {"RANK": "0", "TORCH_FR_BUFFER_SIZE": "20"})
    for name in ("LD_PRELOAD", "PYTHONMALLOC", "OMP_PROC_BIND", "TORCH_DISTRIBUTED_DEBUG"):
        assert not torch_fork.fits(command, env | {name: "1"}), name
    assert not torch_fork.fits(command, {k: v for k, v in env.items() if k != "OMP_NUM_THREADS"})
    assert not torch_fork.fits([sys.executable, "-X", "dev", str(script)], env)
    assert not torch_fork.fits(["python", str(script)], env)
    for text in ("import fr, torch\n", "import fr\nimport torch\n", "import json\n"):
        script.write_text(text)
        assert not torch_fork.fits(command, env), text


def test_the_process_that_forks_ends_with_its_owner(scratch):
    code = "import torch_fork; print(torch_fork.Server().process.pid, flush=True)"
    env = os.environ | {"PYTHONPATH": str(torch_fork.__file__).rpartition("/")[0]}
    got = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    pid = int(got.stdout)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([descriptor], [], [], 90)
    os.close(descriptor)
    assert ready, f"{pid} is still there"
