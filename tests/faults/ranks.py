"""What a rank of a row does. The function that the row names runs on the guilty rank after a few
good steps, and gets a Rank; `others` names that of the others, `meet` where nothing is said."""

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import struct
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import fr

GUILTY = 2
STEPS = 3


class Rank:
    def __init__(self, rank, scratch, boom):
        self.rank = rank
        self.scratch = Path(scratch)
        self.boom = boom

    def there(self, name="there"):
        (self.scratch / f"{name}.{self.rank}").touch()

    def await_file(self, name):
        while not (self.scratch / name).exists():
            time.sleep(0.01)

    def await_there(self, rank=GUILTY, name="there"):
        self.await_file(f"{name}.{rank}")

    def maps(self, part):
        """(path, first, last) of own mappings of files whose name has `part`."""
        found = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and part in fields[5]:
                first, last = (int(x, 16) for x in fields[0].split("-"))
                found.append((Path(fields[5].removesuffix(" (deleted)")), first, last))
        return found


def main(rank, world, scratch, boom, before, fault, others):
    r = Rank(rank, scratch, boom)
    if before:
        globals()[before](r)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    for step in range(STEPS):
        fr.step(step)
        dist.all_reduce(torch.ones(4))
    r.there("stepped")
    globals()[fault if rank == GUILTY else others](r)
    dist.destroy_process_group()


# ---- the others


def meet(r):
    r.await_there()
    dist.all_reduce(torch.ones(4))


def work(r):
    """Until the row says `stop`."""
    stop = torch.zeros(1)
    while not stop.item():
        stop[0] = float((r.scratch / "stop").exists())
        dist.all_reduce(stop)


def none(r):
    r.there()
    meet(r)


def works(r):
    r.there()
    work(r)


# ---- the guilty one: ends


def idle(r):
    r.there()
    while True:
        time.sleep(3600)


def late(r):
    r.there()
    r.await_file("go")
    meet(r)


def kill(r):
    r.there()
    os.kill(os.getpid(), signal.SIGKILL)


def stop(r):
    r.there()
    os.kill(os.getpid(), signal.SIGSTOP)
    meet(r)


def os_exit_0(r):
    r.there()
    os._exit(0)


def os_exit_7(r):
    r.there()
    os._exit(7)


def sys_exit(r):
    r.there()
    sys.exit(0)


def raises(r):
    r.there()
    raise ValueError("loss is nan")


def raises_in_thread(r):
    def bad():
        raise ValueError("prefetch failed")

    threading.Thread(target=bad).start()
    idle(r)


def execs(r):
    r.there()
    os.execv("/bin/sleep", ["sleep", "600"])


def close_all(r):
    r.there()
    os.closerange(3, 4096)
    dist.all_reduce(torch.ones(4))


# ---- crashes


def _boom(name, stack=0):
    def fault(r):
        r.there()
        f = getattr(r.boom, name)
        if stack:
            r.boom.on_thread(f, ctypes.c_size_t(stack))
        else:
            f()
        time.sleep(3600)

    return fault


KIB = 1024
segv, overflow, terminate, fpe, ill = map(
    _boom, ("segv", "overflow", "terminate_now", "fpe", "ill")
)
call_null, bad_stack_pointer, no_thread_pointer, all_blocked = map(
    _boom, ("call_null", "bad_stack_pointer", "no_thread_pointer", "all_blocked")
)
damaged_arena, under_loader_lock, eight_at_once = map(
    _boom, ("damaged_arena", "under_loader_lock", "eight_at_once")
)
segv_thread = _boom("segv", 128 * KIB)
segv_small_thread = _boom("segv", 16 * KIB)
overflow_thread = _boom("overflow", 128 * KIB)
terminate_thread = _boom("terminate_now", 128 * KIB)
no_thread_pointer_thread = _boom("no_thread_pointer", 128 * KIB)


def bus(r):
    r.there()
    r.boom.bus(str(r.scratch / "short").encode())


def abort(r):
    r.there()
    os.abort()


def kill_segv(r):
    r.there()
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(3600)


def _nested():
    x = []
    for _ in range(2_000_000):
        x = [x]
    sys.setrecursionlimit(10_000_000)
    return x


def overflow_python(r):
    x = _nested()
    r.there()
    repr(x)


def overflow_python_thread(r):
    x = _nested()
    threading.stack_size(256 * KIB)
    r.there()
    t = threading.Thread(target=lambda: repr(x))
    t.start()
    t.join()


def segv_daemon(r):
    threading.Thread(target=r.boom.segv, daemon=True).start()
    idle(r)


def segv_faulthandler_after(r):
    faulthandler.enable()
    segv(r)


def segv_host_stack_4(r):
    r.boom.own_alternate_stack(ctypes.c_size_t(4 * KIB))
    segv(r)


def segv_host_stack_8(r):
    r.boom.own_alternate_stack(ctypes.c_size_t(8 * KIB))
    segv(r)


def segv_during_dump(r):
    def crash():
        time.sleep(0.02)
        r.boom.segv()

    r.there()
    threading.Thread(target=crash).start()
    for _ in range(100):
        fr.dump("asked")


def survived(r):
    """Lives with a fault, then trains on and ends well."""
    r.there()
    r.boom.survived_fault()
    r.await_file("go")
    meet(r)


def survived_then_segv(r):
    r.boom.survived_fault()
    deadline = time.monotonic() + 2.5  # a handler that leaves by longjmp is told by operations
    while time.monotonic() < deadline:
        fr.note("trains on")
        time.sleep(0.1)
    r.there()
    r.boom.segv()


# ---- before the group is made


def faulthandler_before(r):
    faulthandler.enable()


def host_returns(r):
    if r.rank == GUILTY:
        r.boom.survive_by_return()


def host_jumps(r):
    if r.rank == GUILTY:
        r.boom.survive_by_jump()


def own_sigterm(r):
    """As a script that writes a checkpoint at preemption."""

    def checkpoint(*_):
        r.there("checkpoint")
        os._exit(0)

    signal.signal(signal.SIGTERM, checkpoint)


def umask_0(r):
    os.umask(0)


# ---- much of something


def threads_500(r):
    for _ in range(500):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    idle(r)


def mappings(r):
    held = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ << (i & 1)) for i in range(30_000)]
    held.append(mmap.mmap(-1, 200 << 30, flags=mmap.MAP_PRIVATE | 0x4000))  # no reserve
    idle(r)


def children_300(r):
    libc = ctypes.CDLL(None)
    for _ in range(300):
        if os.fork() == 0:
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nobody outlives the row
            signal.pause()
    idle(r)


def eat_memory(r):
    r.there()
    r.await_file("go")
    held = []
    while True:
        held.append(b"\1" * (16 << 20))


# ---- what fr needs is taken away


def no_descriptors(r):
    r.there()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            os.dup(0)
    except OSError:
        pass
    idle_quietly(r)


def other_user(r):
    r.there()
    os.setuid(65534)
    idle_quietly(r)


def idle_quietly(r):
    while True:  # it may not write `there` any more
        time.sleep(3600)


def chroot(r):
    r.there()
    (r.scratch / "root").mkdir()
    os.chroot(r.scratch / "root")
    idle_quietly(r)


def small_files(r):
    r.there()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    idle_quietly(r)


def _refuse(*numbers):
    """seccomp: these system calls fail with EPERM on all threads."""
    libc = ctypes.CDLL(None, use_errno=True)
    bpf = [(0x20, 0, 0, 0)]  # load the number
    for i, number in enumerate(numbers):
        bpf.append((0x15, len(numbers) - i, 0, number))
    bpf += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]  # allow, EPERM
    code = b"".join(struct.pack("HBBI", *x) for x in bpf)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(bpf), ctypes.addressof(buffer))
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges
    if libc.syscall(317, 1, 1, program) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


MMAP, SIGALTSTACK, FSYNC, VM_READV, TGSIGQUEUE, GETDENTS, LINK = 9, 131, 74, 310, 297, 217, 86


def no_fsync(r):
    r.there()
    _refuse(FSYNC)
    idle_quietly(r)


def no_calls(r):
    r.there()
    _refuse(VM_READV, TGSIGQUEUE, GETDENTS, LINK)
    idle_quietly(r)


def segv_no_mmap(r):
    r.there()
    _refuse(MMAP, SIGALTSTACK, VM_READV)
    r.boom.segv()


def unmap_ring(r):
    libc = ctypes.CDLL(None)
    mapped = r.maps(".ring")
    r.there()
    for _, first, last in mapped:
        libc.munmap(ctypes.c_void_p(first), ctypes.c_size_t(last - first))
    dist.all_reduce(torch.ones(4))


def truncate_ring(r):
    r.there()
    os.truncate(r.maps(".ring")[0][0], 4096)
    dist.all_reduce(torch.ones(4))


def delete_ring(r):
    os.unlink(r.maps(".ring")[0][0])
    kill(r)


def truncate_page(r):
    path = r.maps(".ctl")[0][0]
    r.there()
    os.truncate(path, 0)
    time.sleep(3600)


def noise_in_page(r):
    path = r.maps(".ctl")[0][0]
    with path.open("r+b") as f:
        f.write(os.urandom(path.stat().st_size))
    work(r)


def fill_shm(r):
    with (r.scratch / "shm" / "fill").open("wb") as f:
        try:
            while True:
                f.write(b"\1" * 4096)
                f.flush()
        except OSError:
            pass
    kill(r)


def dumps_30(r):
    for i in range(30):
        fr.dump(f"number {i}")
    r.there()
    meet(r)


def dump_dir_removed(r):
    path = Path(os.environ["FR_DUMP_DIR"])
    path.mkdir(exist_ok=True)
    path.rmdir()
    kill(r)
