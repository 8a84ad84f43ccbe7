"""Where fr finds little to work with: `import fr` and the job go on, and fr.status() says what is
missed. Real processes in namespaces of their own (no /proc, no /dev/shm, read-only), under seccomp,
without HOME, with adapters that are damaged, beside another libstdc++."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fr import _fr

pytestmark = pytest.mark.usefixtures("adapter_built")

JOB = """
import json, os, sys
import fr
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
dist.barrier()
from fr import _fr
fr.note("still here")
dump = fr.dump()
status = fr.status()
ops = [r["op"] for r in _fr.records() if r["kind"] == "collective"]
print("RESULT " + json.dumps([x[0].item(), ops, dump, status]), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def job(tmp_path):
    """job(prefix=[...], env={...}) -> [(x, ops, dump, status, stderr) per rank]; None unsets."""

    def run(prefix=(), env=None, n=2, script=JOB):
        path = tmp_path / "job.py"
        path.write_text(script)
        base = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "TORCH_"))}
        if "FR_CACHE_DIR" in os.environ:
            base["FR_CACHE_DIR"] = os.environ["FR_CACHE_DIR"]
        base |= {"OMP_NUM_THREADS": "1", "FR_JOB": f"s{os.getpid()}"}
        base |= {"FR_DUMP_DIR": str(tmp_path / "dumps"), "WORLD_SIZE": str(n)}
        base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **(env or {})}
        ranks = [
            subprocess.Popen(
                [*prefix, sys.executable, "-u", str(path)],
                env={k: v for k, v in base.items() if v is not None}
                | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(n)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
            )
            for rank in range(n)
        ]
        found = []
        try:
            for rank in ranks:
                out, err = rank.communicate(timeout=120)
                assert rank.returncode == 0, (rank.returncode, out, err)
                (line,) = [x for x in out.splitlines() if x.startswith("RESULT ")]
                found.append((*json.loads(line.removeprefix("RESULT ")), err))
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
        assert all(f[0] == n for f in found), found
        return found

    return run


def recorded(found):
    """Every rank recorded its operations. The first rank's dump, status and stderr."""
    for _, ops, _, status, err in found:
        assert ops[:1] == ["all_reduce"], (ops, status, err)
        assert "Traceback" not in err
    return found[0][2:]


def captured_by_python(status):
    """No adapter: status says what is missed, and why."""
    assert "missed: DDP's reducer" in status["layers"]["torch"]
    (problem,) = status["python"]["problems"]
    return problem


def in_namespace(*commands):
    """Runs what follows where these commands changed what is mounted."""
    if (unshare := shutil.which("unshare")) is None:
        pytest.skip("no unshare")
    script = "\n".join(["(PATH=/usr/sbin:/usr/bin:/sbin:/bin", *commands, ")", 'exec "$@"'])
    prefix = [unshare, "-m" if os.getuid() == 0 else "-rm", "/bin/sh", "-ec", script, "sh"]
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no namespace: {tried.stderr.strip()}")
    return prefix


READ_ONLY = """
awk '{ print $2 }' /proc/mounts | sort -u | while read at; do
  mount -o remount,bind,ro "$at" 2>/dev/null || true
done
! touch /tmp/x 2>/dev/null
"""
NO_PROC = "mount -t tmpfs -o ro,size=4k none /proc"
# Devices that Python and torch need, and no directory for shared memory.
NO_SHM = """
mount -t tmpfs -o size=64k none /mnt
for at in null zero random urandom full tty; do touch /mnt/$at; mount --bind /dev/$at /mnt/$at; done
mount --rbind /mnt /dev
"""
SMALL_SHM = "mount -t tmpfs -o size=64k none /dev/shm"


def test_no_proc(job):
    dump, status, err = recorded(job(in_namespace(NO_PROC)))
    assert dump and "no threads and no native stacks" in status["proc_why"]
    assert "/proc cannot be read" in err


def test_no_shm(job):
    dump, status, err = recorded(job(in_namespace(NO_SHM)))
    assert dump and status["memory"] == "anonymous"
    assert "cannot create /dev/shm" in status["memory_why"]
    assert "will not survive a SIGKILL" in err


def test_a_small_shm(job):
    dump, status, _ = recorded(job(in_namespace(SMALL_SHM)))
    assert dump and "No space left on device" in status["memory_why"]


def test_read_only_everywhere(job):
    dump, status, err = recorded(job(in_namespace(READ_ONLY)))
    assert dump is None and status["losses"]["dumps_failed"] == 1
    assert "Read-only file system" in status["memory_why"]
    assert re.search("cannot write dumps, .*Read-only file system", err)
    assert status["layers"]["torch"].startswith("adapter"), "it is there to be read"


def test_nothing_of_all_that(job):
    dump, status, _ = recorded(job(in_namespace(NO_SHM, READ_ONLY, NO_PROC)))
    assert dump is None and status["proc_why"] and status["memory_why"]


def test_no_home_and_no_temporary_directory(job):
    env = dict.fromkeys(("HOME", "TMPDIR", "FR_DUMP_DIR", "FR_CACHE_DIR", "PATH"), "/proc/none")
    dump, status, err = recorded(job(env=env | {"CXX": None}))
    assert "no C++ compiler" in captured_by_python(status)
    assert dump is None or dump.startswith("/tmp/")


def test_no_home_and_no_such_user(job):
    """No name of this user's anywhere, and an adapter cannot be looked for."""
    env = {"HOME": None, "FR_CACHE_DIR": None, "PATH": "/none", "CXX": None, "TMPDIR": "/none"}
    dump, status, _ = recorded(job(in_namespace("mount --bind /dev/null /etc/passwd"), env))
    assert dump and "no C++ compiler" in captured_by_python(status)


# ---------------------------------------------------------------- seccomp

DENY = """
import ctypes, os, struct, sys
rows = [[int(n) for n in row.split(":")] for row in sys.argv[1].split(",")]
libc = ctypes.CDLL(None, use_errno=True)
program = [(0x20, 0, 0, 0)]  # load the number
for number, error in rows:  # not this one: over the next; refuse
    program += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error)]
program += [(0x06, 0, 0, 0x7FFF0000)]  # allow
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
libc.prctl(38, 1, 0, 0, 0)  # no new privileges
if libc.prctl(22, 2, struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)), 0, 0) != 0:
    sys.exit("seccomp: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
"""
NUMBERS = {  # of x86_64
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "perf_event_open": 298,
    "memfd_create": 319,
    "io_uring_setup": 425,
    "clone3": 435,
    "pidfd_open": 434,
    "pidfd_send_signal": 424,
    "kcmp": 312,
    "membarrier": 324,
    "userfaultfd": 323,
    "bpf": 321,
    "openat2": 437,
    "statx": 332,
    "renameat2": 316,
    "copy_file_range": 326,
    "fallocate": 285,
    "mlock": 149,
    "mlock2": 325,
    "madvise": 28,
    "sigaltstack": 131,
    "tgkill": 234,
    "rt_tgsigqueueinfo": 297,
    "flock": 73,
    "link": 86,
    "linkat": 265,
    "fsync": 74,
    "sched_setaffinity": 203,
    "setpriority": 141,
    "ioprio_set": 251,
    "timer_create": 222,
    "inotify_init1": 294,
    "vfork": 58,
    "setsid": 112,
    "kill": 62,
}
EPERM, ENOSYS = 1, 38


def denied(tmp_path, error, *names):
    """Runs what follows under seccomp; without names: all of NUMBERS are refused."""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    script = tmp_path / "deny.py"
    script.write_text(DENY)
    # glibc makes no threads at all where clone3 is refused in another way.
    errors = dict.fromkeys(names or NUMBERS, error) | {"clone3": ENOSYS}
    rows = ",".join(f"{NUMBERS[name]}:{value}" for name, value in errors.items())
    prefix = [sys.executable, str(script), rows]
    tried = subprocess.run([*prefix, shutil.which("true")], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(tried.stderr.strip())
    return prefix


@pytest.mark.parametrize("error", [EPERM, ENOSYS], ids=["EPERM", "ENOSYS"])
def test_system_calls_that_are_denied(job, tmp_path, error):
    dump, status, _ = recorded(job(denied(tmp_path, error)))
    assert dump and os.strerror(error) in status["memory_why"]
    assert status["layers"]["torch"].startswith("adapter")


@pytest.mark.parametrize("name", ["ptrace", "process_vm_readv", "rt_tgsigqueueinfo", "fsync"])
def test_a_system_call_that_is_denied(job, tmp_path, name):
    dump, status, _ = recorded(job(denied(tmp_path, EPERM, name)))
    assert dump and status["memory"] == "shm" and status["losses"]["dumps_failed"] == 0


# ---------------------------------------------------------------- libraries


def adapter_of(change, tmp_path):
    """The environment in which a changed copy of the adapter is all there is."""
    import torch

    from fr import adapter

    path = adapter.build(torch)
    if path.parent.name == "adapters":
        pytest.skip("the adapter is a wheel's")
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / path.name).write_bytes(change(path.read_bytes()))
    return {"FR_CACHE_DIR": str(cache), "CXX": None, "PATH": "/none", "TMPDIR": "/none"}


def another_machine(data):
    return data[:18] + b"\xb7\0" + data[20:]


def another_release(data):
    import torch

    version = b"\0" + torch.__version__.split("+")[0].encode() + b"\0"
    assert data.count(version) == 1
    return data.replace(version, version.replace(b"2", b"1", 1))


CUT = {
    "empty": lambda data: b"",
    "its header": lambda data: data[:64],
    "half of it": lambda data: data[: len(data) // 2],
    "all but a page": lambda data: data[:-4096],
    "no library": lambda data: b"#!/bin/sh\n" * 1000,
}
OTHERS = {
    "of another machine": (another_machine, "loading it failed"),
    "another library": (lambda data: Path(_fr.__file__).read_bytes(), "undefined symbol"),
    "of another release": (another_release, "was built for torch 1"),
}


@pytest.mark.parametrize("cut", CUT)
def test_an_adapter_that_is_cut_short(job, tmp_path, cut):
    dump, status, err = recorded(job(env=adapter_of(CUT[cut], tmp_path)))
    assert dump and "no C++ compiler" in captured_by_python(status)
    assert "is cut short and not used" in err


@pytest.mark.parametrize("other", OTHERS)
def test_an_adapter_that_is_none(job, tmp_path, other):
    change, why = OTHERS[other]
    dump, status, _ = recorded(job(env=adapter_of(change, tmp_path)))
    assert dump and why in captured_by_python(status)


def test_an_older_libstdcxx(tmp_path):
    """One that has none of what a compiler of today asks for: fr needs none of the job's."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    versions = tmp_path / "versions"
    versions.write_text("GLIBCXX_3.4 { global: *; };\nCXXABI_1.3 { };\n")
    library = tmp_path / "libstdc++.so.6"
    flags = ["-shared", "-nostdlib", "-Wl,-soname,libstdc++.so.6"]
    command = ["cc", *flags, f"-Wl,--version-script={versions}", "-x", "c", "/dev/null"]
    subprocess.run([*command, "-o", str(library)], check=True)
    script = """
import fr
group = fr.group("g", 1, own_rank=0)
with fr.record(group, "op", sizes=[4]):
    pass
print(fr.status()["why"], [r["op"] for r in fr._fr.records() if r["kind"] == "collective"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"LD_PRELOAD": str(library), "FR_DUMP_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "recording ['op']\n", done.stderr
