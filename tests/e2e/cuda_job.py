"""One rank that uses NCCL on CUDA streams, without torch and without NCCL's plugin.

argv: what goes wrong. CUDA and NCCL are the stand-ins, in CUDA_JOB_HOME; the calls come from a
library that is linked against both.
"""

import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path

import fr

FAULT = sys.argv[1]
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
SCRATCH = Path(os.environ["E2E_SCRATCH"])
HOME = Path(os.environ["CUDA_JOB_HOME"])
FLOAT, SUM = 7, 0
REACHED, OPENED = ctypes.c_int(0), ctypes.c_int(0)

cuda = ctypes.CDLL(str(HOME / "libcuda.so.1"))
nccl = ctypes.CDLL(str(HOME / "libnccl.so.2"))
caller = ctypes.CDLL(str(HOME / "libcaller.so"))


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def check(code):
    if code:
        raise RuntimeError(f"{code}")


def share(name, made):
    path = SCRATCH / name
    if RANK == 0:
        path.with_suffix(".tmp").write_bytes(bytes(made))
        path.with_suffix(".tmp").rename(path)
    while not path.exists():
        time.sleep(0.01)
    return path.read_bytes()


def all_reduce(comm, stream):
    buffer = ctypes.c_void_p(0x1000)
    check(caller.caller_all_reduce(buffer, ctypes.c_size_t(64), FLOAT, SUM, comm, stream))


class Watched:
    """Operations as ProcessGroupNCCL has them: an event behind each, a thread that asks for all
    of them every 100 ms."""

    def __init__(self, stream):
        self.stream = stream
        self.events = []
        threading.Thread(target=self.watch, daemon=True).start()

    def record(self):
        event = ctypes.c_void_p()
        check(cuda.cuEventCreate(ctypes.byref(event), 0))
        check(caller.caller_record(event, self.stream))
        self.events.append(event)
        return event

    def watch(self):
        while True:
            for event in list(self.events):
                if caller.caller_query(event) == 0:
                    self.events.remove(event)
            time.sleep(0.1)

    def ended(self):
        while self.events:
            time.sleep(0.01)


def polled(comm, stream):
    watched = Watched(stream)
    for _ in range(3):
        all_reduce(comm, stream)
        watched.record()
    watched.ended()
    report()
    if FAULT == "polled-skip" and RANK == WORLD - 1:
        time.sleep(600)
    all_reduce(comm, stream)
    watched.record()
    time.sleep(600)


def polled_once(comm, stream):
    gate = [ctypes.c_int(), ctypes.c_int()]  # a kernel that runs until it is told to end
    cuda.standin_cuda_gate(stream, *(ctypes.byref(word) for word in gate))
    all_reduce(comm, stream)
    event = ctypes.c_void_p()
    check(cuda.cuEventCreate(ctypes.byref(event), 0))
    check(caller.caller_record(event, stream))
    if caller.caller_query(event) != 600:
        raise RuntimeError("ready")
    if not any(g["in_flight"] for g in fr.status()["groups"]):
        raise RuntimeError("not in flight")
    if FAULT == "polled-exit":
        return
    settled()
    gate[1].value = 1
    check(caller.caller_synchronize(stream))
    check(caller.caller_destroy(comm))


def settled():
    """Until all that was issued has been seen to end."""
    while any(g["in_flight"] for g in fr.status()["groups"]):
        time.sleep(0.01)


def report():
    (SCRATCH / f"status.{RANK}").write_text(json.dumps(fr.status()))


def main():
    context, stream, comm = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    own = UniqueId()
    check(nccl.ncclGetUniqueId(ctypes.byref(own)))
    own = UniqueId.from_buffer_copy(share("id", own))
    check(nccl.ncclCommInitRank(ctypes.byref(comm), WORLD, own, RANK))
    if FAULT in ("polled", "polled-skip"):
        return polled(comm, stream)
    if FAULT in ("polled-once", "polled-exit"):
        return polled_once(comm, stream)
    for _ in range(3):
        all_reduce(comm, stream)
    check(caller.caller_synchronize(stream))
    if FAULT == "none":
        settled()
    report()
    if FAULT == "stuck" and RANK == 1:
        settled()
        cuda.standin_cuda_block(b"cuEventQuery")
    if FAULT in ("skip", "stuck") and RANK == WORLD - 1:
        time.sleep(600)
    if FAULT == "error":
        # Its kernel fails on the device of rank 1; rank 0 meets the same later.
        if RANK == 1:  # not before: what runs ahead of it does not end
            cuda.standin_cuda_gate(stream, ctypes.byref(REACHED), ctypes.byref(OPENED))
        all_reduce(comm, stream)
        while RANK == 0 and not (SCRATCH / "failed").exists():
            time.sleep(0.01)
        cuda.standin_cuda_break(700)
        if caller.caller_synchronize(stream) != 700:
            raise RuntimeError("no error")
        report()
        (SCRATCH / "failed").touch()
        time.sleep(600)
    while FAULT == "stuck" and RANK == 0 and not (SCRATCH / "stuck").exists():
        time.sleep(0.01)
    all_reduce(comm, stream)
    if FAULT == "stuck":
        while RANK == 1 and not fr.status()["device"]["observer_in"]:
            time.sleep(0.01)
        report()
        (SCRATCH / "stuck").touch()
    check(caller.caller_synchronize(stream))
    check(caller.caller_destroy(comm))


main()
