"""Ranks that issue no operation and wait in none; the fault is the first argument."""

import asyncio
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.file_baton import FileBaton

import fr  # noqa: F401

SCRATCH = Path(os.environ["E2E_SCRATCH"])


def next_shard():
    read, _ = os.pipe()
    os.read(read, 1)  # @pipe


def build_kernel():
    FileBaton(str(SCRATCH / "lock"), 0.1).wait()  # @lock


def two_places():
    if dist.get_rank() == 0:
        next_shard()
    build_kernel()


def serve():
    asyncio.run(asyncio.sleep(1000))


def pause():
    marker = SCRATCH / "go"
    while not marker.exists():
        time.sleep(0.05)
    dist.barrier()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
globals()[sys.argv[1]]()
dist.destroy_process_group()
