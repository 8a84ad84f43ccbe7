"""E2E_SAVES checkpoints for which all wait 3 s for rank 0; then, with `hang` on the command line,
rank 0 leaves an all_reduce out and sleeps. Rank 1's fr.status() goes to status.json before that."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr

END = sys.argv[1]


def step():
    dist.all_reduce(torch.ones(4))  # @step


def save():
    if dist.get_rank() == 0:
        time.sleep(3)
    dist.all_reduce(torch.ones(1))  # @save


dist.init_process_group("gloo")
for _ in range(int(os.environ["E2E_SAVES"])):
    step()
    save()
    time.sleep(0.5)  # the watchdog looks ten times a second
if dist.get_rank() == 1:
    Path(os.environ["E2E_SCRATCH"], "status.json").write_text(json.dumps(fr.status()))
dist.barrier()
if END == "hang":
    if dist.get_rank() == 0:
        time.sleep(1000)
    step()
dist.destroy_process_group()
