"""One rank of a golden job (make_golden.py): two good steps, then the fault of that name."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import fr

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
HERE = Path(os.environ["GOLDEN_SCRATCH"])
FAULT = sys.argv[1]
GUILTY = RANK == WORLD - 1


def idle():
    while True:
        signal.pause()


def await_all(mark):
    """A meeting through files, which no recorder sees."""
    (HERE / f"{mark}.{RANK}").touch()
    while len(list(HERE.glob(f"{mark}.*"))) < WORLD:
        time.sleep(0.01)


def gloo():
    import torch
    import torch.distributed as dist

    def train(n=8):
        dist.all_reduce(torch.ones(n, 4))

    def exchange():
        right, left = (RANK + 1) % WORLD, (RANK - 1) % WORLD
        sent = dist.isend(torch.ones(2), right)
        dist.recv(torch.empty(2), left)
        sent.wait()

    dist.init_process_group("gloo")
    experts = dist.new_group([1, 2], group_desc="experts")
    with fr.span("epoch"):
        for step in range(2):
            fr.step(step)
            fr.note(f"loss of step {step}")
            train()
            exchange()
        await_all("ready")
        if FAULT == "skip_subgroup":
            if GUILTY:
                idle()
            if RANK == 1:
                dist.all_reduce(torch.ones(3), group=experts)
        elif FAULT == "kill" and GUILTY:
            os.kill(os.getpid(), signal.SIGKILL)
        elif FAULT == "exception" and GUILTY:
            raise ValueError("no such batch")
        elif FAULT == "recv" and RANK == 0:
            dist.recv(torch.empty(2), 1)
        elif FAULT == "clean":
            fr.dump(reason="golden")
            idle()
        elif FAULT == "skip" and GUILTY:
            idle()
        train(16 if FAULT == "size" and GUILTY else 8)


def nccl():
    """Over the stand-in of tests/nccl, which breaks as STANDIN_NCCL_FAULT says."""
    library = ctypes.CDLL(os.environ["GOLDEN_NCCL"])

    class UniqueId(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]

    name = HERE / "unique_id"
    own = UniqueId()
    if RANK == 0:
        library.ncclGetUniqueId(ctypes.byref(own))
        name.with_suffix(".tmp").write_bytes(bytes(own))
        name.with_suffix(".tmp").rename(name)
    while not name.exists():
        time.sleep(0.01)
    comm = ctypes.c_void_p()
    own = UniqueId.from_buffer_copy(name.read_bytes())
    library.ncclCommInitRank(ctypes.byref(comm), WORLD, own, RANK)
    buffer, size = ctypes.c_void_p(0x1000), ctypes.c_size_t(1024)
    for _ in range(4):
        library.ncclAllReduce(buffer, buffer, size, 7, 0, comm, None)
    library.standin_synchronize(comm)


nccl() if "STANDIN_NCCL_FAULT" in os.environ else gloo()
