"""Ranks to look into: `wait`: rank 0 waits in gloo; `breakpoint`: rank 1 stands in one."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr

SCRATCH = Path(os.environ["E2E_SCRATCH"])


class Model:
    def __init__(self):
        self.weight = torch.empty(2, 3, device="meta")  # stands for a device that hangs
        self.bias = torch.ones(2)

    def __repr__(self):
        return f"Model of {self.weight.sum().item()}"


def wait(rank):
    model = Model()
    grads = {"w": [model.weight], "b": (model.bias,)}  # noqa: F841
    if rank == 1:
        while not (SCRATCH / "go").exists():
            time.sleep(0.05)
    dist.all_reduce(model.bias)


def stop(rank):
    seen = torch.ones(3)
    work = dist.all_reduce(torch.ones(4), async_op=True) if rank == 0 else None
    fr.breakpoint(ranks=[1])
    after = "the line after"
    work = work or dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()
    dist.all_reduce(seen)
    (SCRATCH / f"done.{rank}").write_text(f"{after} {seen.sum().item()}")


dist.init_process_group("gloo")
own = dist.get_rank()
{"wait": wait, "breakpoint": stop}[sys.argv[1]](own)
dist.destroy_process_group()
