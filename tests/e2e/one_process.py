"""One process with the recorder on, that runs a script and is asked where its threads are."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import interpreters
import pytest
from conftest import FRTRACE, wait_until

NATIVE = """
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
__attribute__((noinline)) int overflow(int n) {
  volatile char room[4096];
  room[0] = n;
  return overflow(n + 1) + room[0];
}
static void *record_and_overflow(void *note) {
  ((void (*)(const char *, size_t))note)("here", 4);
  overflow(0);
  return 0;
}
void start_thread(void *note) {
  pthread_t thread;
  pthread_create(&thread, 0, record_and_overflow, note);
}
void spin(void) { for (volatile long i = 0;; ++i) {} }
void hold(void) { for (;;) pause(); }
void block_signals_and_wait(void) {
  sigset_t all; sigfillset(&all); pthread_sigmask(SIG_SETMASK, &all, 0); for (;;) pause();
}
__attribute__((noinline)) void write_to_nowhere(int *p) { *p = 1; }
void crash(void) { write_to_nowhere((int *)8); }
static __attribute__((noinline)) void not_exported(void) { for (;;) pause(); }
void call_not_exported(void) { not_exported(); }
"""

PRELUDE = """
import ctypes, os, sys, threading, time
import fr
from fr import _fr
_fr.start()
lib = ctypes.CDLL(os.environ["E2E_LIB"])        # without the GIL
holding = ctypes.PyDLL(os.environ["E2E_LIB"])   # with it
def spawn(fn):
    threading.Thread(target=fn, daemon=True).start()
def ready():
    open("ready", "w").close()
"""


@pytest.fixture(scope="session")
def native_lib(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    path = tmp_path_factory.mktemp("lib")
    (path / "native.c").write_text(NATIVE)
    return compile_library(path / "native.c", path / "libguilty.so")


def compile_library(source, target, *flags):
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wl,--build-id", *flags, "-o", target, source]
    subprocess.run(command, check=True)
    return target


def incident_of(path):
    return int(path.name.split(".")[-2])


class Process:
    """One process with the recorder on, asked for a dump by a signal: no Python needed for it."""

    def __init__(self, scratch, lib, script, env, python, interpreter):
        self.dir = scratch
        (scratch / "target.py").write_text(PRELUDE + script)
        base = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "TORCH_"))}
        base |= {"E2E_LIB": str(lib), "FR_DUMP_DIR": str(scratch / "dumps"), "FR_JOB": "job"}
        base |= {"FR_SHM_DIR": str(scratch / "shm"), "FR_SIGNAL": "USR2", "RANK": "0"}
        base |= interpreter.env | env
        self.log = scratch / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [interpreter.executable, *python, "target.py"],
                cwd=scratch,
                env=base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=self.before_exec,
            )
        self.pid = self.process.pid

    @staticmethod
    def before_exec():
        for number in (signal.SIGHUP, signal.SIGQUIT):  # ignored by nohup, or in the background
            signal.signal(number, signal.SIG_DFL)

    def ready(self, asleep=None):
        def started():
            there = (self.dir / "ready").exists()
            assert there or self.process.poll() is None, self.log.read_text()
            return there

        wait_until(f"start of {self.dir}", started)
        if asleep is not None:  # main thread got into that system call
            syscall = Path(f"/proc/{self.pid}/task/{self.pid}/syscall")
            wait_until("main thread asleep", lambda: syscall.read_text().split()[0] in asleep)
        return self

    def await_calls(self, *names):
        """Until so many threads are in these system calls."""
        if os.uname().machine == "x86_64":
            numbers = {"pause": "34", "futex": "202", "clock_nanosleep": "230"}
            wanted = Counter(numbers[name] for name in names)
            tasks = Path(f"/proc/{self.pid}/task")
            wait_until(
                f"threads in {names}",
                lambda: (
                    wanted <= Counter(t.read_text().split()[0] for t in tasks.glob("*/syscall"))
                ),
            )
        return self

    def dumps(self):
        """In the order of their incidents; of many, the last ones are kept."""
        return sorted((self.dir / "dumps").glob("*.fr"), key=incident_of)

    def dump(self):
        before = max(map(incident_of, self.dumps()), default=0)
        os.kill(self.pid, signal.SIGUSR2)
        wait_until(
            f"a dump: {self.log.read_text()}",
            lambda: max(map(incident_of, self.dumps()), default=0) > before,
        )
        return self

    def stacks(self):
        got = subprocess.run(
            [FRTRACE, "--json", "--stacks", str(self.dir / "dumps")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.report = json.loads(got.stdout)
        return self.report["stacks"]["classes"]

    def read(self):
        self.stacks()
        return self.report

    def main(self):
        (found,) = [c for c in self.stacks() if c["role"] == "main"]
        return found


@pytest.fixture
def interpreter():
    return interpreters.OWN


@pytest.fixture
def start(scratch, native_lib, interpreter):
    processes = []

    def run(script, env=None, python=()):
        processes.append(Process(scratch, native_lib, script, env or {}, python, interpreter))
        return processes[-1]

    yield run
    for p in processes:
        p.process.kill()
        p.process.wait(timeout=10)


def python_frames(stack):
    """[(file, line, function)...] innermost first, of lines such as 'a/b.py:12 f'."""
    found = [re.fullmatch(r"(.*\.py):(\d+) (\S+)", line) for line in reversed(stack)]
    return [(Path(m[1]).name, int(m[2]), m[3].split(".")[-1]) for m in found if m]


def innermost(classes):
    """What each does, by its innermost function."""
    frames = [(python_frames(c["stack"]), c["doing"]) for c in classes]
    return {f[0][2]: doing for f, doing in frames if f}
