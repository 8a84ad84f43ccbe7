"""Where every thread is, on real processes that cannot run a line of Python any more."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import msgpack
import one_process
import pytest
import zstandard
from conftest import FRTRACE, wait_until
from one_process import NATIVE, compile_library, innermost, python_frames

interpreter = one_process.interpreter
native_lib = one_process.native_lib
start = one_process.start


EVERY_KIND = """
import asyncio
a, b = threading.Lock(), threading.Lock()
both = threading.Barrier(2)
def ab():
    with a:
        both.wait()
        with b: pass
def ba():
    with b:
        both.wait()
        with a: pass
def fifo():
    os.mkfifo("pipe")
    open("pipe")
def compare(x):
    threading.Event().wait()
def generate():
    yield from sorted([1, 2], key=compare)
def consume():
    list(generate())
async def inner():
    await asyncio.sleep(0)
    time.sleep(3600)
async def outer():
    await inner()
def loop():
    asyncio.run(outer())
def spin():
    lib.spin()
for fn in (ab, ba, fifo, consume, loop, spin):
    spawn(fn)
def in_native_code():
    ready()
    lib.hold()
in_native_code()
"""


def test_every_kind_of_thread_as_py_spy_sees_it(start):
    p = start(EVERY_KIND).ready()
    calls = {"ab": "futex", "ba": "futex", "fifo": "open", "wait": "futex"}

    def at_rest():  # each where it stays
        doing = innermost(p.dump().stacks())
        asleep = all(doing.get(f, "").startswith(f"asleep in {call}") for f, call in calls.items())
        sleeps = re.match("asleep in (clock_nanosleep|pselect6)", doing.get("inner", ""))
        return asleep and sleeps and "spin" in doing  # `inner` wakes up now and then

    wait_until("all threads at their places", at_rest)
    classes = p.stacks()
    said = json.dumps(classes, indent=1)
    ours = Counter()
    for c in classes:
        ours[tuple(python_frames(c["stack"]))] += c["threads"]
    doing = innermost(classes)
    assert doing["spin"].startswith(("running, no system call", "runnable")), said
    assert doing["fifo"].startswith("asleep in open"), said
    assert "pipe" in doing["fifo"], said
    assert doing["ab"].startswith("asleep in futex"), said
    assert re.match("asleep in (clock_nanosleep|pselect6)", doing["inner"]), said
    main = p.main()
    assert main["stack"][-2:] == ["hold (libguilty.so)", "pause (libc.so.6)"], said
    assert python_frames(main["stack"])[0][2] == "in_native_code", said

    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        pytest.skip("py-spy is not installed: frames were not compared")
    got = subprocess.run(
        [spy, "dump", "--json", "--pid", str(p.pid)], capture_output=True, text=True, timeout=60
    )
    if got.returncode != 0:
        pytest.skip(f"py-spy may not look: {got.stderr}")
    theirs = Counter()
    for thread in json.loads(got.stdout):
        frames = [
            (Path(f["filename"]).name, f["line"], f["name"].split(".")[-1])
            for f in thread["frames"]
            if f["filename"].endswith(".py")
        ]
        theirs[tuple(frames)] += 1
    assert ours == theirs


GDB = """
import gdb, json
out = {}
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, rows = gdb.newest_frame(), []
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):  # not on the stack
            rows.append([frame.name() or "", frame.pc()])
        frame = frame.older()
    out[thread.ptid[1]] = rows
print("FRAMES " + json.dumps(out))
"""


def test_native_frames_as_gdb_sees_them(start, scratch):
    """Every thread, frame by frame, by address; the evaluator's frames are Python's with us."""
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed")
    script = """
def compare(x):
    lib.call_not_exported()
def locked():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
spawn(locked)
spawn(lambda: sorted([1, 2], key=compare))
spawn(lambda: time.sleep(3600))
ready()
lib.hold()
"""
    p = start(script).ready()
    p.await_calls("pause", "pause", "clock_nanosleep", "futex").dump()
    (scratch / "frames.py").write_text(GDB)
    command = [gdb, "-nx", "-batch", "-ex", "set debuginfod enabled off"]
    command += ["-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on"]
    got = subprocess.run(
        [*command, "-p", str(p.pid), "-x", scratch / "frames.py"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = [line for line in got.stdout.splitlines() if line.startswith("FRAMES ")]
    if not told:
        pytest.skip(f"gdb may not look: {got.stderr}")
    theirs = json.loads(told[0].removeprefix("FRAMES "))
    with p.dumps()[-1].open("rb") as file:
        dump = msgpack.unpackb(
            zstandard.ZstdDecompressor().stream_reader(file).read(), strict_map_key=False
        )
    frames = dump["thread_facts"]["frames"]
    bias = {}
    for thread in dump["threads"]:
        if thread["answer"] != "answered":
            continue
        ours = [frames[i] for i in thread["stack"] if frames[i][0] == "native"]
        whole = theirs[str(thread["tid"])]
        # a caller is where it called, one byte before where it goes on
        expected = [[name, pc - (at > 0)] for at, (name, pc) in enumerate(whole)]
        expected = [f for f in expected if not f[0].startswith("_PyEval_EvalFrameDefault")]
        assert len(ours) == len(expected), (thread, ours, expected)
        for (_, _, file, _, offset), (_, pc) in reversed(list(zip(ours, expected, strict=True))):
            # a call that will be made again stands at its instruction, not behind it
            rewound = 4 if pc == whole[0][1] else 0
            assert abs(bias.setdefault(file, pc - offset) - (pc - offset)) <= rewound, (
                thread,
                ours,
                expected,
            )
    assert len([t for t in dump["threads"] if t["answer"] == "answered"]) == 4
    assert {"libguilty.so", "libc.so.6"} <= {Path(file).name for file in bias}


def test_functions_that_a_library_does_not_export(start, scratch):
    """frtrace finds their names in the file, where it is the one that was loaded."""
    (scratch / "own.c").write_text(NATIVE)
    lib = compile_library(scratch / "own.c", scratch / "libown.so")
    p = start(f"own = ctypes.CDLL({str(lib)!r})\nready()\nown.call_not_exported()\n")
    p.ready(asleep=("34",) if os.uname().machine == "x86_64" else None).dump()
    stack = p.main()["stack"]
    if re.fullmatch(r"libown.so\+0x[0-9a-f]+", stack[-2]):
        pytest.skip("frtrace was built without libdw")
    assert stack[-3:] == [
        "call_not_exported (libown.so)",
        "not_exported (libown.so)",
        "pause (libc.so.6)",
    ]
    lib.unlink()
    compile_library(scratch / "own.c", lib, "-DANOTHER", "-Wl,-soname,another")
    assert re.fullmatch(r"libown.so\+0x[0-9a-f]+", p.main()["stack"][-2]), p.main()["stack"]


def test_gil_held_for_ever_by_a_c_call(start):
    p = start(
        """
def waits():
    while True:
        time.sleep(0.001)
def holds():
    ready()
    holding.hold()
spawn(waits)
holds()
"""
    )
    p.ready().await_calls("pause", "futex").dump()
    main = p.main()
    assert "holds the GIL" in main["doing"], main
    assert python_frames(main["stack"])[0][2] == "holds"
    (other,) = [c for c in p.stacks() if c["role"] != "main"]
    assert "waits for the GIL, which thread" in other["doing"], other
    assert python_frames(other["stack"])[0][2] == "waits"


# After a few calls of such a function the evaluator calls its C function directly.
OWN_WAIT = """
#include <Python.h>
#include <pthread.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
__attribute__((noinline)) void wait_for_condition(void) {
  for (;;) pthread_cond_wait(&never, &mutex);
}
static PyObject *step(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) {
  if (args[0] == Py_True) {
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&mutex);
    wait_for_condition();
    Py_END_ALLOW_THREADS
  }
  Py_RETURN_NONE;
}
static PyMethodDef methods[] = {
  {"step", (PyCFunction)(void (*)(void))step, METH_FASTCALL | METH_KEYWORDS, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "ownwait", 0, -1, methods};
PyMODINIT_FUNC PyInit_ownwait(void) { return PyModule_Create(&module); }
"""


def test_a_librarys_own_wait_is_none_for_the_gil(start, scratch):
    headers = Path(sysconfig.get_paths()["include"])
    if shutil.which("cc") is None or not (headers / "Python.h").exists():
        pytest.skip("needs a C compiler and Python's headers")
    (scratch / "ownwait.c").write_text(OWN_WAIT)
    compile_library(scratch / "ownwait.c", scratch / "ownwait.so", f"-I{headers}")
    p = start(
        """
sys.path.insert(0, os.getcwd())
from ownwait import step
def train():
    for i in range(100):
        if i == 99:
            ready()
        step(i == 99)
train()
"""
    )
    p.ready().await_calls("futex").dump()
    main = p.main()
    assert "wait_for_condition (ownwait.so)" in main["stack"], main
    assert "GIL" not in main["doing"], main


def test_recursion_shows_both_ends(start):
    p = start(
        """
sys.setrecursionlimit(3000)
def deeper(n):
    if n: return deeper(n - 1)
    ready()
    lib.hold()
deeper(int(os.environ["DEPTH"]))
""",
        env={"DEPTH": "2000"},
    )
    stack = p.ready().dump().main()["stack"]
    frames = python_frames(stack)
    assert frames[0][2] == "deeper" and frames[-1][2] == "<module>"
    (cut,) = [line for line in stack if "more Python frames" in line]
    assert int(re.search(r"\d+", cut)[0]) + len(frames) == 2002


def test_200_threads_answer_within_their_time(start):
    p = start(
        """
def work():
    threading.Event().wait()
for _ in range(200):
    spawn(work)
ready()
lib.hold()
"""
    )
    p.ready().await_calls("pause", *["futex"] * 200)

    def told():  # on a busy machine some have no processor within their time
        return sum(c["threads"] for c in p.dump().stacks() if "work" in str(c["stack"])) == 200

    wait_until("200 stacks", told)


def test_a_thread_that_blocks_signals_is_shown_by_proc(start):
    p = start("spawn(lib.block_signals_and_wait)\nready()\nlib.hold()\n")
    classes = p.ready().await_calls("pause", "pause").dump().stacks()
    (other,) = [c for c in classes if c["role"] != "main"]
    assert "blocks the sampling signal" in other["doing"] and "pause" in other["doing"], classes


@pytest.mark.parametrize("how", ["proc", "off"])
def test_threads_are_left_alone_when_told(start, how):
    p = start("ready()\nlib.hold()\n", env={"FR_THREADS": how})
    classes = p.ready(asleep=("34",) if os.uname().machine == "x86_64" else None).dump().stacks()
    if how == "off":
        assert classes == []
    else:
        # polling: it has just been woken by the signal that asks for the dump
        assert classes[0]["stack"] in (["[asleep in pause]"], ["[polling in pause]"]), classes


def test_variables_of_plain_types_only(start):
    p = start(
        """
class Loader:
    def __init__(self):
        self.path, self.retries, self.api_token = "/data/x", 3, "hunter2"
        self.other = self
    def __repr__(self):
        os._exit(9)
    def load(self, batch, password=b"hunter2"):
        scale = 0.5
        magic, long = b"\x7fELF'", b"x" * 500
        shape, pair, mixed, nested = [4, None], ("a",), [1, self], [[1]]
        secret_keys = ["hunter2"]
        ready()
        lib.hold()
Loader().load(7)
"""
    )
    where = "\n".join(p.ready().dump().main()["where"])
    assert "load(): batch = 7, password = '***', scale = 0.5" in where
    assert r"magic = b'\x7fELF\'', long = b'xxx" in where and "xxx...', shape" in where
    assert "shape = [4, None], pair = ('a',), mixed = list of 2, nested = [list of 1]" in where
    assert "secret_keys = list of 1" in where
    # In the order of their first assignment up to Python 3.12.
    for attribute in ("path = '/data/x'", "retries = 3", "api_token = '***'"):
        assert f"self.{attribute}" in where
    assert "hunter2" not in where and "self.other" not in where
    assert p.process.poll() is None
    assert "hunter2" not in p.dumps()[0].read_bytes().decode("latin1")


def test_tensors_by_type_shape_and_device(start):
    pytest.importorskip("torch")
    p = start(
        """
import torch
from fr import adapter
adapter.load()
class Odd(torch.Tensor):
    __slots__ = ("extra",)
    def __repr__(self):
        os._exit(9)
def train(batch, meta):
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    deep, scalar = torch.zeros(1, 2, 1, 1, 1, 1, 3), torch.tensor(1, dtype=torch.int64)
    odd, pair = torch.empty(3, dtype=torch.float8_e5m2).as_subclass(Odd), (batch, 1)
    ready()
    lib.hold()
train(torch.ones(4, 1024), torch.empty(2, 0, device="meta"))
""",
        env={"FR_CACHE_DIR": os.environ["FR_CACHE_DIR"]} if "FR_CACHE_DIR" in os.environ else {},
    )
    where = "\n".join(p.ready().dump().main()["where"])
    assert "batch = tensor float32[4, 1024] cpu, meta = tensor float32[2, 0] meta" in where
    assert "weight = tensor bfloat16[2] cpu" in where
    assert "deep = tensor float32[1, 2, 1, 1, 1, 1, 3] cpu, scalar = tensor int64[] cpu" in where
    assert "odd = tensor float8_e5m2[3] cpu" in where
    assert "pair = (tensor float32[4, 1024] cpu, 1)" in where
    assert p.process.poll() is None


def test_no_variables_when_told(start):
    p = start("def f(n):\n    ready()\n    lib.hold()\nf(7)\n", env={"FR_LOCALS": "0"})
    assert "n = 7" not in str(p.ready().dump().main()["where"])


def test_stale_lock_of_torchs_file_baton(start):
    pytest.importorskip("torch")
    p = start(
        """
from torch.utils.file_baton import FileBaton
open("lock", "w").close()
os.utime("lock", (1, 1))
def build():
    ready()
    FileBaton(os.path.abspath("lock"), wait_seconds=0.01).wait()
build()
"""
    )
    p.ready()

    def waiting():
        p.dump()
        return "FileBaton.wait" in str(p.main()["where"])

    wait_until("FileBaton.wait", waiting)
    where = "\n".join(p.main()["where"])
    assert "is in build() at target.py:" in where
    assert ", in FileBaton.wait() at torch/utils/file_baton.py:" in where
    assert f"waits for the lock file {p.dir}/lock to go; it still exists" in where
    assert "before this process began, no process" in where and "has it open: stale" in where
    held = (p.dir / "lock").open()  # and now somebody has it open
    where = "\n".join(p.main()["where"])
    assert f"open in process {os.getpid()} (" in where and "stale" not in where
    held.close()


def test_variables_are_those_of_the_users_frames(start):
    p = start(
        """
import asyncio
async def fetch(url):
    await asyncio.sleep(3600)
def crawl(pages):
    asyncio.run(fetch("a"))
ready()
crawl(3)
"""
    ).ready()

    def waiting():
        p.dump()
        return "select()" in str(p.main()["where"])

    wait_until("the event loop", waiting)
    where = p.main()["where"]
    frames = [line.split("(")[0] for line in where if line.startswith("in ")]
    # of the library's only the innermost, after the user's
    assert frames == ["in crawl", "in EpollSelector.select"], where
    assert all(len(line) < 800 for line in where), where


def test_an_installed_package_is_not_the_users(start, scratch):
    package = scratch / "env" / "lib" / "python3.11" / "site-packages" / "mini"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import fr\n\ndef gather(group, hold):\n    fr.begin(group, 'all_gather')\n    hold()\n"
    )
    p = start(
        """
sys.path.insert(0, "env/lib/python3.11/site-packages")
import mini
def train(group):
    ready()
    mini.gather(group, lib.hold)
train(fr.group("g", [0, 1]))
""",
        env={"FR_WARN_S": "1"},
    )
    p.ready().await_calls("pause").dump()
    line = (scratch / "target.py").read_text().split("\n").index(
        "    mini.gather(group, lib.hold)") + 1  # fmt: skip
    where = p.main()["where"][0]
    assert where.startswith(f"is in train() at target.py:{line}, in gather() at mini/__ini"), where
    wait_until(
        "the warning",
        lambda: f"at target.py:{line} (train, in mini gather)" in p.log.read_text(),
    )


def test_the_exception_that_a_thread_handles_is_told(start):
    p = start(
        """
import json
class NoBatch(RuntimeError): pass
def load(path):
    json.loads("3")
    raise NoBatch(f"no batch in {path}\\nsecond line")
def train():
    try:
        load("shard-7")
    except NoBatch:
        try:
            json.loads("{")
        except ValueError:
            pass
        for _ in (i for i in range(3)):
            ready()
            lib.hold()
try:
    json.loads("[")
except ValueError:
    pass
train()
"""
    )
    p.ready().await_calls("pause").dump()
    lines = (p.dir / "target.py").read_text().split("\n")
    raised = 1 + next(n for n, line in enumerate(lines) if "raise NoBatch" in line)
    handling = f"while it handles NoBatch: no batch in shard-7, at target.py:{raised} in load"
    assert handling in p.main()["where"], p.main()


UNANSWERED = """
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static int wait_for_ever(void) { for (;;) pause(); }
int stat(const char *path, struct stat *to) {
  if (strstr(path, "libunanswered")) return wait_for_ever();
  return fstatat(-100, path, to, 0);
}
"""


def test_a_library_on_a_dead_server_does_not_hold_frtrace(start, scratch):
    (scratch / "own.c").write_text(NATIVE)
    (scratch / "unanswered.c").write_text(UNANSWERED)
    lib = compile_library(scratch / "own.c", scratch / "libunanswered.so")
    preload = compile_library(scratch / "unanswered.c", scratch / "preload.so")
    p = start(f"own = ctypes.CDLL({str(lib)!r})\nready()\nown.call_not_exported()\n")
    p.ready(asleep=("34",) if os.uname().machine == "x86_64" else None).dump()
    if "libunanswered.so+0x" in str(p.main()["stack"]):
        pytest.skip("frtrace was built without libdw")
    got = subprocess.run(
        [FRTRACE, "--stacks", str(p.dir / "dumps")],
        env=os.environ | {"LD_PRELOAD": str(preload), "COLUMNS": "120"},  # else cut at 80
        capture_output=True,
        text=True,
        timeout=60,
    )
    print(got.stdout, got.stderr)  # whole, where a check fails
    assert re.search(r"libunanswered.so\+0x[0-9a-f]+", got.stdout)
    assert f"not read: {lib}: its file system does not answer" in got.stdout
    assert "call_not_exported (libunanswered.so)" in got.stdout  # exported: the recorder knows


HANGS = {
    "store": (
        """
import torch
store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True)
ready()
store.get("a key that nobody sets")
""",
        "waits in the ranks' store for a key that another rank sets",
    ),
    "loader": (
        """
import torch
class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        time.sleep(3600)
ready()
next(iter(torch.utils.data.DataLoader(Dataset(), num_workers=1)))
""",
        " is asleep in clock_nanosleep, in Dataset.__getitem__() at target.py:",
    ),
    "stopped worker": (
        """
import signal, torch
class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        os.kill(os.getpid(), signal.SIGSTOP)
ready()
next(iter(torch.utils.data.DataLoader(Dataset(), num_workers=1)))
""",
        " is stopped",
    ),
    "import": (
        """
open("slow.py", "w").write("import time, builtins; builtins.started = 1; time.sleep(3600)")
sys.path.insert(0, os.getcwd())
import builtins
spawn(lambda: __import__("slow"))
while not hasattr(builtins, "started"):
    time.sleep(0.01)
ready()
import slow
""",
        "waits for the import lock",
    ),
    "locks": (
        """
a, b, both = threading.Lock(), threading.Lock(), threading.Barrier(2)
def other():
    with b:
        both.wait()
        with a: pass
spawn(other)
with a:
    both.wait()
    ready()
    with b: pass
""",
        "waits for a Python lock; so does thread ",
    ),
    "fifo": (
        "os.mkfifo('pipe')\nready()\nopen('pipe')\n",
        "opens the FIFO pipe, which nobody has opened at its other end",
    ),
}


WORK = """
import time
def load(path):
    open(path, "w").close()
    time.sleep(3600)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_python_stack_of_a_worker_process(start, method):
    """Read from its memory: of one that inherited fr, and of those that never heard of it."""
    p = start(
        f"""
import multiprocessing
open("work.py", "w").write({WORK!r})
sys.path.insert(0, os.getcwd())
del __file__  # children do not run this file again
import work
worker = multiprocessing.get_context({method!r}).Process(target=work.load, args=("there",))
worker.start()
while not os.path.exists("there"):
    time.sleep(0.01)
ready()
worker.join()
"""
    ).ready()
    classes = p.dump().stacks()
    stacks = [c["stack"] for c in classes if c["role"].endswith(", a child process")]
    frames = [python_frames(stack) for stack in stacks]
    assert ("work.py", 5, "load") in [f[0] for f in frames if f], classes


@pytest.mark.parametrize("hang", HANGS)
def test_hints_of_real_hangs(start, hang):
    script, hint = HANGS[hang]
    if "torch" in script:
        pytest.importorskip("torch")
    p = start(script).ready()

    def told():
        p.dump()
        return hint in str(p.main()["where"])

    try:
        wait_until(hint, told)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{json.dumps(p.main(), indent=1)}") from None


def test_frtrace_stacks_asks_the_process_and_says_so(start):
    p = start("def f():\n    ready()\n    lib.hold()\nf()\n").ready()
    got = subprocess.run(
        [FRTRACE, "stacks", "--shm-dir", p.dir / "shm", str(p.pid)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert got.returncode == 0, got
    assert f"process {p.pid}: 1 of 1 answered" in got.stderr
    assert not p.dumps() and "dump" not in p.log.read_text(), p.log.read_text()
    assert [path.suffix for path in (p.dir / "shm").rglob("*.r0.*")] == [".ring"]
    assert "hold (libguilty.so)" in got.stdout and "target.py:" in got.stdout
    assert p.process.poll() is None
    os.kill(p.pid, signal.SIGSTOP)
    wait_until("stop", lambda: ") T " in Path(f"/proc/{p.pid}/stat").read_text())
    stopped = subprocess.run(
        [FRTRACE, "stacks", "--shm-dir", p.dir / "shm", str(p.pid)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert stopped.returncode == 0, stopped
    assert f"rank 0 (pid {p.pid}): stopped (SIGSTOP" in stopped.stdout, stopped
    assert f"is stopped; its stacks: py-spy dump --native --pid {p.pid}" in stopped.stderr
    without = subprocess.run(
        [FRTRACE, "stacks", "--shm-dir", p.dir / "shm", str(os.getpid())],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert without.returncode == 3
    assert f"py-spy dump --native --pid {os.getpid()}" in without.stderr
    gone = subprocess.run([FRTRACE, "stacks", "no-such-job"], capture_output=True, timeout=60)
    assert gone.returncode == 3
