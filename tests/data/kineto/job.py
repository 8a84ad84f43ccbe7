"""Four gloo ranks under torch.profiler; rank 2 comes late to each step, and nothing is stuck.

    torchrun --nproc-per-node 4 job.py OUT [late_s]

The traces beside this file are from torch 2.13.0; names of files and hosts are as they were.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

STEPS = 12
LATE_RANK = 2


def main():
    out, late_s = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.06
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradients, loss = torch.ones(64), torch.ones(1)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(STEPS):
            time.sleep(0.02 + (late_s if rank == LATE_RANK else 0))  # what a step computes
            dist.all_reduce(gradients)
            dist.all_reduce(loss)
    trace.export_chrome_trace(os.path.join(out, f"trace_rank{rank}.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
