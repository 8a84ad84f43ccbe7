"""One rank of a job under Slurm or torchrun: some steps; then the last rank looks for a file that
never comes, and the others wait for it. `good`: it ends after the steps."""

import os
import sys
import time

for ours, slurms in (("RANK", "PROCID"), ("LOCAL_RANK", "LOCALID"), ("WORLD_SIZE", "NTASKS")):
    os.environ.setdefault(ours, os.environ.get(f"SLURM_{slurms}", "0"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import fr  # noqa: E402


def load_batch():
    while True:
        time.sleep(0.1)


dist.init_process_group("gloo")
for step in range(3):
    fr.step(step)
    dist.all_reduce(torch.ones(4))
if "good" not in sys.argv and dist.get_rank() == dist.get_world_size() - 1:
    load_batch()
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
