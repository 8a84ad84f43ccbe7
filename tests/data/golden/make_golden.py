"""Makes a set of golden files: dumps and rings of real ranks, as this version of fr writes them.

    unshare --mount --uts python make_golden.py SITE_PACKAGES OF_TORCH LIBNCCL CACHE OUT

As root, once per version of the format, never again for that version; what frtrace must say of them
is written by hand, in expected.json. SITE_PACKAGES has fr, OF_TORCH
is a virtual environment with torch, LIBNCCL the stand-in of tests/nccl, CACHE fr's adapters. The
ranks run in a mount namespace where nothing has the names of the machine that they run on.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import zstandard

HERE = Path(__file__).parent
WORLD = 3
ROOT = Path("/srv")  # of the ranks' namespace
RING = re.compile(r"golden\.a0\.r\d+\.\d+\.ring$")

CASES = {
    "clean": {},
    "skip": {},
    "skip_subgroup": {},
    "kill": {},
    "exception": {},
    "size": {},
    "recv": {},
    "device": {"STANDIN_NCCL_FAULT": "device:1:4"},
    "transport": {"STANDIN_NCCL_FAULT": "lost:1:4"},
}
THREADS = {"skip"}  # the only case with stacks of all threads, which are most of a dump


def mount(*args):
    subprocess.run(["mount", *map(str, args)], check=True)


def furnish(packages, torch, nccl, cache):
    socket.sethostname("node0")
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "golden", ROOT)
    shutil.copytree(packages / "fr", ROOT / "lib" / "fr")
    shutil.copytree(cache, ROOT / "cache")
    for what, name in ((torch, "venv"), (sys.base_prefix, "python")):
        (ROOT / name).mkdir()
        mount("--bind", what, ROOT / name)
    shutil.copy(nccl, ROOT / "lib" / "libnccl.so.2")
    (ROOT / "job").mkdir()
    shutil.copy(HERE / "job.py", ROOT / "job" / "train.py")
    (ROOT / "boot_id").write_text("00000000-0000-4000-8000-000000000000\n")
    mount("--bind", ROOT / "boot_id", "/proc/sys/kernel/random/boot_id")


def start(case, env, scratch):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = {
        "PATH": "/usr/bin:/bin", "HOME": str(scratch), "PYTHONPATH": str(ROOT / "lib"),
        "GOLDEN_SCRATCH": str(scratch), "GOLDEN_NCCL": str(ROOT / "lib" / "libnccl.so.2"),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD), "OMP_NUM_THREADS": "1",
        "FR_JOB": "golden", "FR_CACHE_DIR": str(ROOT / "cache"), "FR_BUFFER_SIZE": "64",
        "FR_DUMP_DIR": str(scratch / "dumps"), "FR_SHM_DIR": str(scratch / "shm"),
        "FR_WARN_S": "1", "FR_TIMEOUT_S": "2" if case != "clean" else "600",
        "FR_THREADS": "signal" if case in THREADS else "off",
        **env,
    }  # fmt: skip
    for library in (ROOT / "python" / "lib").glob("libpython3.*.so.1.0"):
        common["LD_PRELOAD"] = str(library)  # by this name, whatever the interpreter's own path
    program = [str(ROOT / "venv" / "bin" / "python"), "train.py", case]
    return [
        subprocess.Popen(
            program, cwd=ROOT / "job", env=common | {"RANK": str(r), "LOCAL_RANK": str(r)}
        )
        for r in range(WORLD)
    ]


def run(case, env, to):
    scratch = ROOT / "run" / case
    (scratch / "shm").mkdir(parents=True)
    ranks = start(case, env, scratch)
    until = time.monotonic() + 120
    dumps = scratch / "dumps"
    while len({p.name.split(".")[2] for p in dumps.rglob("*.fr")}) < WORLD:
        if time.monotonic() > until:
            raise SystemExit(f"{case}: no dumps of all ranks")
        time.sleep(0.05)
    if all(p.poll() is None for p in ranks):  # those that end take their rings along
        time.sleep(3)  # the last signs of life are then well behind what the ranks wait for
    alive = [p for p in ranks if p.poll() is None]
    for how in (signal.SIGSTOP, signal.SIGKILL):  # at once, so that none sees another one end
        for p in alive:
            os.kill(p.pid, how)
    for p in ranks:
        p.wait()
    (to / case).mkdir(parents=True)
    rings = [p for p in (scratch / "shm").rglob("*.ring") if RING.match(p.name)]
    for file in [*dumps.rglob("golden.*.fr"), *rings]:
        data = file.read_bytes()
        if file.suffix == ".ring":
            data = zstandard.ZstdCompressor(level=19).compress(data)
        name = file.name + (".zst" if file.suffix == ".ring" else "")
        (to / case / name).write_bytes(data)


def main():
    *where, out = (Path(a).resolve() for a in sys.argv[1:])
    furnish(*where)
    for case, env in CASES.items():
        run(case, env, out)
        print(case, sorted(p.name for p in (out / case).iterdir()), flush=True)


main()
