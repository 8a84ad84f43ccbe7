"""One rank of tests/gpu/run.py; argv: the case."""

import json
import os
import signal
import sys
import time
from pathlib import Path

if not os.environ.get("GPU_NO_FR"):
    import fr
import torch
import torch.distributed as dist

CASE = sys.argv[1]
RANK = int(os.environ["RANK"])
HOME = Path(os.environ["GPU_HOME"])


def result(**values):
    (HOME / f"result.{RANK}").write_text(json.dumps(values))


def settled():
    """The default group, once fr has seen the end of all that was issued."""
    for _ in range(500):
        (world,) = [g for g in fr.status()["groups"] if g["desc"] == "default_pg"]
        if world["in_flight"] == 0:
            break
        time.sleep(0.01)
    return world


def main():
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=None)
    x = torch.ones(1 << 16, device="cuda")
    for _ in range(3):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    if CASE == "healthy":
        out = torch.empty(2 << 16, device="cuda")
        dist.all_gather_into_tensor(out, x)
        dist.broadcast(x, 0)
        dist.reduce_scatter_tensor(x, out)
        dist.barrier()
        torch.cuda.synchronize()
        world = settled()
        result(
            enqueued=world["enqueued"],
            completed=world["completed"],
            device=fr.status()["device"],
        )
    elif CASE == "events":
        big = torch.ones(1 << 22, device="cuda")
        around = []
        for _ in range(10):
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            dist.all_reduce(big)
            pair[1].record()
            around.append(pair)
        torch.cuda.synchronize()
        world = settled()
        entries = fr.snapshot()["entries"]
        result(
            enqueued=world["enqueued"],
            completed=world["completed"],
            device=fr.status()["device"],
            fr_ms=[e["duration_ms"] for e in entries if e.get("duration_ms")][-10:],
            torch_ms=[a.elapsed_time(b) for a, b in around],
        )
    elif CASE == "skip":
        if RANK == 1:
            time.sleep(600)
        dist.all_reduce(x)
        torch.cuda.synchronize()
    elif CASE == "killed":
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(x)
        torch.cuda.synchronize()
    elif CASE == "stuck_stream":
        if RANK == 1:
            torch.cuda._sleep(1 << 40)  # a kernel that spins for minutes
        dist.all_reduce(x)
        torch.cuda.synchronize()
    elif CASE == "graph":
        before = settled()["enqueued"]
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            dist.all_reduce(x)
        for _ in range(5):
            captured.replay()
        torch.cuda.synchronize()
        records = [r for r in fr._fr.records() if r["flags"] & 16]
        result(
            before=before,
            enqueued=settled()["enqueued"],
            captured=len(records),
            replays=5,
            device=fr.status()["device"],
        )
    elif CASE == "illegal_access":
        try:
            if RANK == 1:
                index = torch.full((1,), 1 << 40, device="cuda")
                x[index] = 1  # asynchronous device-side error
            dist.all_reduce(x)
            torch.cuda.synchronize()
        except RuntimeError:
            result(error=fr.status()["device"]["error"])
            raise
    elif CASE == "overhead":
        small = torch.ones(256, device="cuda")
        n = 2000
        for _ in range(200):
            dist.all_reduce(small)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(n):
            dist.all_reduce(small)
        issued = time.perf_counter()
        torch.cuda.synchronize()
        ended = time.perf_counter()
        result(issue_us=(issued - began) / n * 1e6, total_us=(ended - began) / n * 1e6)
    dist.destroy_process_group()


main()
