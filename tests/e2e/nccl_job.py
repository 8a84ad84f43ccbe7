"""One rank that uses NCCL without torch, as vLLM's pynccl does: ctypes on libnccl.so.2.

argv: what goes wrong. NCCL is the stand-in of tests/nccl, named by NCCL_JOB_LIBRARY; with
NCCL_JOB_CALLER its calls come from a library that is linked against it.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

import fr

FAULT = sys.argv[1]
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
SCRATCH = Path(os.environ["E2E_SCRATCH"])
FLOAT, SUM = 7, 0
IN_PROGRESS = 7


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


nccl = ctypes.CDLL(os.environ["NCCL_JOB_LIBRARY"])
caller = nccl
if os.environ.get("NCCL_JOB_CALLER"):
    caller = ctypes.CDLL(os.environ["NCCL_JOB_CALLER"])
    caller.ncclAllReduce = caller.caller_all_reduce


def check(code):
    if code:
        raise RuntimeError(f"NCCL: {code}")


def unique_id(name):
    path = SCRATCH / f"id.{name}"
    made = UniqueId()
    if RANK == 0:
        check(nccl.ncclGetUniqueId(ctypes.byref(made)))
        path.with_suffix(".tmp").write_bytes(bytes(made))
        path.with_suffix(".tmp").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return UniqueId.from_buffer_copy(path.read_bytes())


def init(name="world"):
    comm = ctypes.c_void_p()
    own = unique_id(name)
    check(nccl.ncclCommInitRank(ctypes.byref(comm), WORLD, own, RANK))  # @nccl-init
    return comm


class Config(ctypes.Structure):
    """Head of ncclConfig_t."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    ]


def init_in_background(name="world"):
    """A non-blocking communicator: made when ncclCommGetAsyncError says so."""
    comm = ctypes.c_void_p()
    config = Config(ctypes.sizeof(Config), 0, 0, 0)
    made = nccl.ncclCommInitRankConfig(
        ctypes.byref(comm), WORLD, unique_id(name), RANK, ctypes.byref(config)
    )
    await_launch(comm, made)
    return comm


def await_launch(comm, code):
    """What a non-blocking communicator was asked for is done when it says so."""
    error = ctypes.c_int(code)
    while error.value == IN_PROGRESS:
        check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(error)))
        time.sleep(0.01)
    check(error.value)


def all_reduce(comm, count=1024, stream=None):
    buffer = ctypes.c_void_p(0x1000)
    size = ctypes.c_size_t(count)
    stream = ctypes.c_void_p(stream)
    code = caller.ncclAllReduce(buffer, buffer, size, FLOAT, SUM, comm, stream)  # @nccl-meet
    await_launch(comm, code)


def synchronize(comm):
    check(nccl.standin_synchronize(comm))


def exchange(comm):
    """Sends around a ring, in one group."""
    buffer, size = ctypes.c_void_p(0x2000), ctypes.c_size_t(8)
    check(nccl.ncclGroupStart())
    check(nccl.ncclSend(buffer, size, FLOAT, (RANK + 1) % WORLD, comm, None))
    check(nccl.ncclRecv(buffer, size, FLOAT, (RANK - 1) % WORLD, comm, None))
    await_launch(comm, nccl.ncclGroupEnd())


def queue_behind_pair(comm):
    """The last two ranks meet by themselves, then all meet, on the same stream."""
    pair = ctypes.c_void_p()
    color = 0 if RANK >= WORLD - 2 else -1
    check(nccl.ncclCommSplit(comm, color, RANK, ctypes.byref(pair), None))
    if pair.value:
        all_reduce(pair)
        synchronize(pair)
        all_reduce(pair, stream=0x7000)
    all_reduce(comm, stream=0x7000)
    synchronize(comm)


def report(comm):
    """What the tests want to know, from a rank that goes on."""
    import json

    (SCRATCH / f"status.{RANK}").write_text(json.dumps(fr.status()))


def main():
    in_background = bool(os.environ.get("NCCL_JOB_IN_BACKGROUND"))
    if FAULT == "init" and RANK == WORLD - 1:
        # This rank belongs to the communicator's group, but never calls init().
        fr.group("driver", ranks=WORLD)
        (SCRATCH / "elsewhere").touch()
        time.sleep(600)
    while FAULT == "init" and not (SCRATCH / "elsewhere").exists():
        time.sleep(0.01)
    comm = init_in_background() if in_background else init()
    for _ in range(3):
        all_reduce(comm)
        exchange(comm)
    synchronize(comm)
    report(comm)
    if FAULT == "skip" and RANK == WORLD - 1:
        time.sleep(600)
    if FAULT == "wrong_op" and RANK == WORLD - 1:
        all_reduce(comm, 4096)
        time.sleep(600)
    if FAULT == "window":
        if RANK == WORLD - 1:
            time.sleep(600)
        window = ctypes.c_void_p()
        buffer, size = ctypes.c_void_p(0x3000), ctypes.c_size_t(4096)
        check(nccl.ncclCommWindowRegister(comm, buffer, size, ctypes.byref(window), 0))
    if FAULT == "behind":
        queue_behind_pair(comm)
    all_reduce(comm)
    if FAULT == "async":
        error = ctypes.c_int(0)
        while error.value == 0 and RANK == 1:
            check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(error)))
            time.sleep(0.01)
        time.sleep(600)
    synchronize(comm)
    half = ctypes.c_void_p()
    check(nccl.ncclCommSplit(comm, RANK % 2, RANK, ctypes.byref(half), None))
    if half.value and FAULT == "skip_split" and RANK == WORLD - 1:
        time.sleep(600)
    all_reduce(half)
    synchronize(half)
    check(nccl.ncclCommDestroy(half))
    check(nccl.ncclCommDestroy(comm))


main()
