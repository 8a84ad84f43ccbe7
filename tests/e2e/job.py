"""One rank of a test job: a few good steps, then the fault named on the command line.

A fault is a function of that name. Lines marked `# @name` are looked up by the tests, which compare
them with the file:line of the verdict. The last rank is the guilty one where nothing else is said.
"""

import ctypes
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import fr

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
GUILTY = RANK == WORLD - 1
SCRATCH = Path(os.environ["E2E_SCRATCH"])
STEPS = 3


def all_reduce(n=4, dtype=torch.float32, **kwargs):
    return dist.all_reduce(torch.ones(n, dtype=dtype), **kwargs)


def steps():
    for step in range(STEPS):
        fr.step(step)
        dist.all_reduce(torch.ones(4))  # @steps


def meet():
    dist.all_reduce(torch.ones(4))  # @meet


def idle():
    there()
    while True:
        signal.pause()  # @idle


def await_file(name):
    while not (SCRATCH / name).exists():
        time.sleep(0.02)


def named(what, rank):
    """A file of this rank's: jobs and attempts may share the directory."""
    return f"{what}.{os.environ['FR_JOB']}.{ATTEMPT}.{rank}"


def there():
    """This rank is where its fault is: the others may begin to wait for it."""
    (SCRATCH / named("there", RANK)).touch()


def await_there(*ranks):
    for rank in ranks:
        await_file(named("there", rank))


def meet_after(*ranks):
    await_there(*ranks)
    meet()


# ---- operations that never come


def none():
    meet()


def skip():
    idle() if GUILTY else meet_after(WORLD - 1)


def skip_subgroup():
    """The last rank skips in a subgroup; its members wait there, rank 0 in the world."""
    group = dist.new_group(list(range(1, WORLD)), group_desc="experts")
    if GUILTY:
        idle()
    if RANK > 0:
        await_there(WORLD - 1)
        there()
        dist.all_reduce(torch.ones(4), group=group)  # @subgroup
    meet_after(*range(1, WORLD))


def group_order():
    """The guilty one makes the groups of pairs in the opposite order."""
    pairs = [[r, r + 1] for r in range(0, WORLD, 2)] + [[r, r + 2] for r in range(WORLD - 2)]
    for pair in reversed(pairs) if GUILTY else pairs:
        dist.new_group(pair)  # @new_group
    meet()


def many_groups():
    """600 groups come and go, more than a ring has rows for; then two are used in a circle."""
    for _ in range(600):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(4), group=group)
        dist.destroy_process_group(group)
    first, second = (dist.new_group([0, 1], group_desc=name) for name in ("first", "second"))
    there()
    dist.all_reduce(torch.ones(4), group=second if GUILTY else first)  # @circle
    idle()


def idle_bystander():
    """Rank 1 skips in {0, 1}; rank 2 has nothing in flight and is no member."""
    group = dist.new_group([0, 1], group_desc="pair")
    if RANK == 0:
        await_there(1, 2)
        dist.all_reduce(torch.ones(4), group=group)  # @pair
    idle()


def sleep():
    if GUILTY:
        load_batch()
    meet_after(WORLD - 1)


def store():
    """All but the last wait for a key that only the last one sets."""
    if GUILTY:
        idle()
    await_there(WORLD - 1)
    dist.distributed_c10d._get_default_store().get("loaded")  # @store


def load_batch():
    there()
    time.sleep(3600)  # @load_batch


def late():
    """A slow checkpoint: what hangs goes on when the test says so."""
    if GUILTY:
        there()
        await_file("go")  # @late
        meet()
    else:
        meet_after(WORLD - 1)


def stale_lock():
    """A build waits for a lock file that a killed one left; torch's own code on both sides."""
    if GUILTY:
        fr.step(20)
        fr.note("building extension")
        with fr.span("startup"):
            build_extension()
    meet()


def build_extension():
    from torch.utils import cpp_extension

    cpp_extension.load("ext", ["ext.cpp"], build_directory=str(SCRATCH / "build"))  # @load


def sigstop():
    if GUILTY:
        there()
        os.kill(os.getpid(), signal.SIGSTOP)
    meet_after(WORLD - 1)


def gil():
    """A C call that never returns and never lets go of the GIL."""
    if GUILTY:
        holding = ctypes.PyDLL(None)
        there()
        holding.sleep(3600)  # @gil
    meet_after(WORLD - 1)


def destroy_hangs():
    """The other ranks leave with an operation in flight: gloo waits for it in destroy."""
    if GUILTY:
        idle()
    await_there(WORLD - 1)
    dist.all_reduce(torch.ones(4), async_op=True)  # @abandoned
    dist.destroy_process_group()


# ---- operations that differ


def size():
    if GUILTY:
        there()
        dist.all_reduce(torch.ones(9))  # @size
    meet_after(WORLD - 1)


def dtype():
    if GUILTY:
        there()
        dist.all_reduce(torch.ones(4, dtype=torch.float64))  # @dtype
    meet_after(WORLD - 1)


def op():
    if GUILTY:
        there()
        dist.broadcast(torch.ones(4), src=0)  # @op
    meet_after(WORLD - 1)


# ---- ranks that end


def kill():
    if GUILTY:
        there()
        os.kill(os.getpid(), signal.SIGKILL)
    meet_after(WORLD - 1)


def kill_others_hang():
    """As with a backend that does not notice a dead peer: nobody ends."""
    if GUILTY:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        meet()
    except RuntimeError:
        idle()


def oom():
    """Takes memory until the kernel has had enough."""
    if GUILTY:
        await_file("go")
        hoard = []
        while True:
            hoard.append(b"x" * (16 << 20))
    meet()


def loader_killed():
    """A DataLoader worker is killed as by the kernel; torch notices and raises."""

    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            os.kill(os.getpid(), signal.SIGKILL)

    if GUILTY:
        batches = torch.utils.data.DataLoader(
            Dataset(), num_workers=1, multiprocessing_context="fork"
        )
        next(iter(batches))
    meet()


def early_exit():
    if GUILTY:
        sys.exit(0)  # @early_exit
    await_file("go")
    meet()


def os_exit():
    if GUILTY:
        os._exit(3)
    meet()


def exception():
    if GUILTY:
        raise ValueError("loss is nan")  # @raise
    meet()


def abort():
    """A C++ thread that Python knows nothing of calls abort()."""
    if GUILTY:
        libc = ctypes.CDLL(None)
        entry = ctypes.cast(libc.abort, ctypes.c_void_p)
        libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, entry, None)
        idle()
    meet()


def segv():
    if GUILTY:
        ctypes.string_at(8)  # @segv
    meet()


def restart():
    """Attempt 0 ends by an exception of rank 0, attempt 1 hangs for the last rank."""
    if ATTEMPT == 0:
        if RANK == 0:
            raise ValueError("first attempt")
        meet()
    skip()


# ---- more than one thing


def twice():
    """Rank 1 is late twice; in between everything recovers."""
    for name in ("first", "second"):
        if GUILTY:
            await_file(name)
        meet()
        steps()


def loader():
    """Batches from forked workers, which must leave the parent's ring alone."""

    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            fr.note(f"worker {i}")
            return torch.ones(4)

    batches = torch.utils.data.DataLoader(
        Dataset(), batch_size=4, num_workers=2, multiprocessing_context="fork"
    )
    for batch in batches:
        dist.all_reduce(batch)
    entries = fr.snapshot()["entries"]
    if RANK == 0:
        names = [entry["profiling_name"] for entry in entries]
        (SCRATCH / "names.json").write_text(json.dumps(names))


def main():
    (SCRATCH / named("pid", RANK)).write_text(str(os.getpid()))
    for rank in range(WORLD):  # importing torch takes the ranks of a busy machine unequal times
        await_file(named("pid", rank))
    limit = os.environ.get("E2E_GLOO_TIMEOUT_S")
    dist.init_process_group("gloo", timeout=timedelta(seconds=int(limit)) if limit else None)
    steps()
    globals()[sys.argv[1]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
