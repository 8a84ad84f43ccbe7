"""Processes that destroy their groups and make them anew; the way is the first argument.

Rank 1 raises in step 10 of the first try, all destroy their groups and begin another try.
"""

import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr  # noqa: F401

SCRATCH = Path(os.environ["E2E_SCRATCH"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TIMEOUT = datetime.timedelta(seconds=60)
way = sys.argv[1]
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), WORLD, RANK == 0)


def hangs(attempt, step, rank):
    return (way, attempt, step, rank) in (
        ("hang", 1, 15, 0),
        ("fewer", 1, 15, 0),
        ("three", 2, 5, 1),
    )


def train(attempt, rank, world):
    prefix = dist.PrefixStore(f"try{attempt}", store)
    dist.init_process_group("gloo", store=prefix, rank=rank, world_size=world, timeout=TIMEOUT)
    (SCRATCH / f"try.{attempt}.{rank}").touch()
    for step in range(100000):
        if (attempt, step, rank) == (0, 10, 1):
            raise RuntimeError("bad batch 10")  # @first
        if (way, attempt, step, rank) == ("three", 1, 7, 2):
            raise ValueError("bad batch 7")  # @second
        if hangs(attempt, step, rank):
            time.sleep(1000)  # @hang
        dist.all_reduce(torch.ones(16))
        time.sleep(0.02)
        if (SCRATCH / "end").exists():
            ends = torch.ones(1)
            dist.all_reduce(ends)
            if ends.item() == world:
                return


attempt, rank, world = 0, RANK, WORLD
while True:
    try:
        train(attempt, rank, world)
        break
    except (RuntimeError, ValueError):
        dist.destroy_process_group()
    time.sleep(0.5)
    attempt += 1
    if way == "fewer" and RANK == 1:
        time.sleep(1000)  # has left the job
    if way == "fewer":
        rank, world = RANK - (RANK > 1), WORLD - 1
dist.destroy_process_group()
