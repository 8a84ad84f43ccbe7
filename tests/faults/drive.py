"""What a row of the fault table does to its ranks from outside, and to the machine before them."""

import ctypes
import os
import shutil
import signal
import stat
import struct
import subprocess
import time
from pathlib import Path

GUILTY = 2
PATIENCE_S = 30  # for an event


class Skip(Exception):
    """It cannot be done here; the reason."""


class Wrong(Exception):
    """What the row must show is not so."""


def until(what, condition, limit=PATIENCE_S):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise Wrong(f"waited {limit} s for {what}")
        time.sleep(0.02)


def nothing(run):
    pass


def there(run, name="there"):
    until(name, lambda: (run.scratch / f"{name}.{GUILTY}").exists())


def waiting(run):
    """The others wait for the guilty one, as the live rings show."""
    there(run)
    until("the others' waits", lambda: run.verdict(("shm",))["kind"] == "missing")


# ---- signals


def kill_all(run):
    there(run)
    time.sleep(0.3)  # in the middle of work
    for pid in run.pids.values():
        os.kill(pid, signal.SIGKILL)
    run.await_ends()


def kill_all_in_a_hang(run):
    there(run)
    time.sleep(1.0)  # is the fault of this row
    for pid in run.pids.values():
        os.kill(pid, signal.SIGKILL)
    run.await_ends()


def kill_all_and_try_again(run):
    kill_all_in_a_hang(run)
    run.again = True
    run.start(attempt=1, fault="none")
    run.await_ends()


def go_on(run):
    there(run)
    run.await_evidence(4)
    os.kill(run.pids[GUILTY], signal.SIGCONT)
    run.await_ends()


def let_go(run):
    there(run)
    run.await_evidence(4)
    (run.scratch / "go").touch()
    run.await_ends()


def trace(run):
    """PTRACE_SEIZE and PTRACE_INTERRUPT: stopped as under a debugger."""
    there(run)
    libc = ctypes.CDLL(None, use_errno=True)
    pid = run.pids[GUILTY]
    for task in os.listdir(f"/proc/{pid}/task"):
        if libc.ptrace(0x4206, int(task), None, None) != 0:
            raise Skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
        run.traced.append(int(task))
        libc.ptrace(0x4207, int(task), None, None)


def signals(*numbers, when="hang"):
    def drive(run):
        waiting(run)
        if when == "dump":  # one of them has begun
            until("a dump", lambda: any(run.dumps.glob("*")) or any(run.dumps.glob(".*")))
        elif when == "hang":
            run.await_evidence(4)
        for number in numbers:
            for pid in run.pids.values():
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        run.await_ends(alive_ok=signal.SIGINT in numbers)

    return drive


def checkpoint(run):
    waiting(run)
    for pid in run.pids.values():
        os.kill(pid, signal.SIGTERM)
    there(run, "checkpoint")
    run.await_ends(alive_ok=True)


def _hanging_disk(run, reached, limit):
    waiting(run)
    (run.scratch / "hang").touch()
    begun = time.monotonic()
    for pid in run.pids.values():
        os.kill(pid, signal.SIGTERM)
    until("its end while the disk hangs", reached, limit)
    run.note = f"{time.monotonic() - begun:.1f} s"
    (run.scratch / "hang").unlink()


def term_with_hanging_disk(run):
    _hanging_disk(run, lambda: run.ended(GUILTY), 12)
    run.await_ends()


def checkpoint_with_hanging_disk(run):
    reached = run.scratch / f"checkpoint.{GUILTY}"
    _hanging_disk(run, reached.exists, 5)
    run.await_ends(alive_ok=True)


# ---- what the row looks at besides the verdict


def four_kept(run):
    there(run)
    kept = {int(p.name.split(".")[3]) for p in run.dumps.glob("*.r2.*.fr")}
    if len(kept) != 4 or 1 not in kept or max(kept) < 30:
        raise Wrong(f"kept {sorted(kept)}")
    run.await_ends()


def rings_remain(run):
    run.await_ends()
    if len(list((run.scratch / "shm").rglob("*.ring"))) < 4:
        raise Wrong("rings are missing")


def train_on(run):
    there_is = run.scratch / f"stepped.{GUILTY}"
    until("steps", there_is.exists)
    time.sleep(1.5)
    if any(run.ended(rank) for rank in range(4)):
        raise Wrong("a rank has ended")
    (run.scratch / "stop").touch()
    run.await_ends()
    if set(run.statuses.values()) != {0}:
        raise Wrong(f"statuses {run.statuses}")


def nothing_elsewhere(run):
    run.await_evidence(4)
    allowed = {"dumps", "shm", "tmp", "logs"}
    strange = [
        p.name
        for p in run.scratch.iterdir()
        if p.name not in allowed and not p.name.startswith(("there.", "stepped."))
    ]
    outside = [p.name for p in run.scratch.parent.iterdir() if ".r2." in p.name]
    if strange or outside:
        raise Wrong(f"written elsewhere: {strange} {outside}")


def trap_is_empty(run):
    run.await_evidence(3)
    if any((run.scratch / "trap").iterdir()):
        raise Wrong("something was written into the trap")


def modes(run):
    run.await_evidence(4)
    for path in [run.dumps, *run.dumps.iterdir(), *(run.scratch / "shm").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        private = path.is_file() or "shm" in path.parts[-2:]
        if (private and mode & 0o077) or mode & 0o002:
            raise Wrong(f"{path.name} has mode {mode:o}")


def number_is_small(run):
    run.await_evidence(4)
    numbers = {int(p.name.split(".")[3]) for p in run.dumps.glob("*.r2.*.fr")}
    if max(numbers) > 10:
        raise Wrong(f"incidents {numbers}")


# ---- machines


def _mount(run, where, *options):
    path = run.scratch / where
    path.mkdir(exist_ok=True)
    got = subprocess.run(["mount", *options, path], capture_output=True, text=True)
    if got.returncode != 0:
        raise Skip("no mounts here")
    run.mounts.append(path)


def small(*pairs):
    """small("dumps", 8, "tmp", 8): file systems of so many KiB."""

    def prepare(run):
        for where, kib in zip(pairs[::2], pairs[1::2], strict=True):
            _mount(run, where, "-t", "tmpfs", "-o", f"size={kib}k", "none")

    return prepare


def read_only(run):
    _mount(run, "dumps", "-t", "tmpfs", "-o", "ro", "none")


def linked(sound):
    def prepare(run):
        if sound:
            (run.scratch / "tmp" / "real").mkdir()
        run.dumps.symlink_to(run.scratch / "tmp" / ("real" if sound else "none/none"))

    return prepare


def planted(what):
    def prepare(run):
        if os.geteuid() != 0:
            raise Skip("not root")
        path = run.scratch / "shm" / f"fr-{os.geteuid()}"
        if what == "owner":
            path.mkdir(0o777)
            os.chown(path, 65534, 65534)
        elif what in ("trap", "own"):
            target = run.scratch / "trap"
            target.mkdir(0o700)
            if what == "trap":
                target.chmod(0o777)
                os.chown(target, 65534, 65534)
            path.symlink_to(target)
        elif what == "file":
            path.write_text("")
        else:
            path.mkdir()
            path.chmod(0o777)
            space = Path("/proc/self/ns/pid").stat().st_ino
            page = path / f"job.a0.{space}.ctl"
            page.write_bytes(b"\1" * 200_000)
            os.chown(page, 65534, 65534)

    return prepare


def absurd_number(run):
    run.dumps.mkdir()
    (run.dumps / "job.a0.r0.9999999999999999999.fr").touch()


def control_group(run):
    own = dict(x.split(":")[1:] for x in Path("/proc/self/cgroup").read_text().splitlines())
    first = "memory" in own
    root = Path("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup")
    run.group = Path(f"{root}{own['memory' if first else '']}") / f"fr-faults-{run.scratch.name}"
    run.limit = "memory.limit_in_bytes" if first else "memory.max"
    run.usage = "memory.usage_in_bytes" if first else "memory.current"
    try:
        run.group.mkdir()
    except OSError as error:
        run.group = None
        raise Skip("no control groups here") from error
    if not (run.group / run.limit).exists():
        raise Skip("no control of memory here")


def limit_memory(run):
    there(run)
    used = int((run.group / run.usage).read_text())
    (run.group / run.limit).write_text(str(used + (256 << 20)))
    (run.scratch / "go").touch()


def clock(seconds, kill=False):
    """The clock of all ranks is set while they run."""

    def drive(run):
        there(run)
        (run.scratch / "clock").write_bytes(struct.pack("q", seconds * 1_000_000_000))
        if kill:
            os.kill(run.pids[GUILTY], signal.SIGKILL)

    return drive


def clean(run):
    for path in reversed(run.mounts):
        subprocess.run(["umount", "-l", path], capture_output=True)
    if run.group is not None and run.group.exists():
        try:
            run.group.rmdir()
        except OSError:
            pass
    if "FR_FAULTS_KEEP" not in os.environ:
        shutil.rmtree(run.scratch, ignore_errors=True)
