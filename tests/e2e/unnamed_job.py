"""A job of two ranks by mp.spawn that no launcher variable names: PORT, SCRATCH and a fault.

Its ranks say by files that they are up, and wait for the file `go`.
"""

import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import fr  # noqa: F401


def rank_main(rank, port, scratch, fault):
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    dist.all_reduce(torch.ones(4))
    (scratch / f"up.{port}.{rank}").touch()
    while not (scratch / "go").exists():
        time.sleep(0.02)
    if fault == "skip" and rank == 1:
        while True:
            signal.pause()
    dist.all_reduce(torch.ones(4))
    while not (scratch / "end").exists():
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, (int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]), nprocs=2)
