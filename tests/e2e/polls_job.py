"""Ranks that wait by looking again and again; the way is the first argument.

In step 20 the rank that is named by `wrong` leaves out its part, and goes on to the collective.
"""

import mmap
import multiprocessing
import os
import queue
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr  # noqa: F401

SCRATCH = Path(os.environ["E2E_SCRATCH"])
STEPS = 40
WRONG_STEP = 20


def store_barrier(store, key, world):
    store.add(key, 1)  # @add
    while store.add(key, 0) < world:
        time.sleep(0.01)


def counter(rank, world):
    """A barrier in the store: rank 1 leaves it out."""
    store = dist.distributed_c10d._get_default_store()

    def step(n):
        if (n, rank) != (WRONG_STEP, 1):
            store_barrier(store, f"barrier/{n}", world)

    return step


def key(rank, world):
    """Rank 2 sets a key in every step, and the others wait for it."""
    store = dist.distributed_c10d._get_default_store()

    def step(n):
        if rank != 2:
            store.wait([f"ready-{n}"])
        elif n != WRONG_STEP:
            store.set(f"ready-{n}", b"1")  # @set

    return step


def file_barrier(n, world):
    while not all((SCRATCH / f"{n}.{r}").exists() for r in range(world)):
        time.sleep(0.02)  # @files


def files(rank, world):
    """A barrier of files: rank 1 leaves it out."""

    def step(n):
        if (n, rank) != (WRONG_STEP, 1):
            (SCRATCH / f"{n}.{rank}").touch()
            file_barrier(n, world)

    return step


def memory(rank, world):
    """A barrier in shared memory: rank 2 leaves it out."""
    path = SCRATCH / "flags"
    if rank == 0:
        path.write_bytes(bytes(4096))
    dist.barrier()
    with path.open("r+b") as file:
        flags = mmap.mmap(file.fileno(), 4096)

    def step(n):
        if (n, rank) != (WRONG_STEP, 2):
            flags[rank] = n + 1
            while min(flags[:world]) <= n:
                time.sleep(0.005)

    return step


def produce(to, n):
    for i in range(n):
        to.put(i)
    time.sleep(1000)


def child(rank, world):
    """The child of rank 0 that feeds its queue stops."""
    batches = multiprocessing.Queue()
    n = WRONG_STEP if rank == 0 else STEPS
    multiprocessing.Process(target=produce, args=(batches, n), daemon=True).start()

    def next_batch(_):
        while True:
            try:
                return batches.get_nowait()
            except queue.Empty:
                time.sleep(0.05)  # @child

    return next_batch


def check(rank, world):
    """Rank 0 looks for a key that nobody sets."""
    store = dist.distributed_c10d._get_default_store()

    def step(n):
        while (n, rank) == (WRONG_STEP, 0) and not store.check(["evaluate"]):
            time.sleep(0.3)  # @check

    return step


if __name__ == "__main__":
    dist.init_process_group("gloo")
    step = globals()[sys.argv[1]](dist.get_rank(), dist.get_world_size())
    for n in range(STEPS):
        step(n)
        dist.all_reduce(torch.ones(8))
