"""A false alarm, of which all ranks dump, and soon after a fault of rank 2: FAULT of the command
line."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr

FAULT = sys.argv[1]


def await_files(ending, n):
    while len(list(Path(os.environ["FR_DUMP_DIR"]).glob(f"*.1.{ending}"))) < n:
        time.sleep(0.02)  # @late


def go_wrong():
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "exit":
        os._exit(3)
    if FAULT == "exception":
        raise ValueError("bad batch")
    if FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT == "sleep":
        time.sleep(1000)  # @sleeps


dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
if rank == 0:
    await_files("fr", dist.get_world_size())
for step in range(12):
    fr.step(step)
    if step == 3:
        await_files("later.fr", dist.get_world_size() - 1)  # all have seen that it went on
    if step == 6 and rank == 2:
        go_wrong()
    if (step, rank, FAULT) != (6, 2, "skip"):
        dist.all_reduce(torch.ones(8))  # @first
    dist.all_reduce(torch.ones(4))  # @second
