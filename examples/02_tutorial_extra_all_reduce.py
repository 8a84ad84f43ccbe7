# The case of PyTorch's Flight Recorder tutorial: rank 0 issues one all_reduce more than the rest.
#
#     torchrun --standalone --nproc-per-node 4 examples/02_tutorial_extra_all_reduce.py
#     frtrace /tmp/fr-tutorial
#
# The options have PyTorch's names and are set in the script, between the imports and
# init_process_group, as scripts that use PyTorch's own recorder do.

import os
import time

import torch
import torch.distributed as dist

import fr  # noqa: F401  the only line added

os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", "/tmp/fr-tutorial/trace_")
os.environ.setdefault("FR_TIMEOUT_S", "3")


def extra_all_reduce(tensor: torch.Tensor) -> None:
    print("rank 0 issues one all_reduce that no other rank knows of", flush=True)
    dist.all_reduce(tensor)


def evaluate() -> None:
    """What the other ranks do meanwhile."""
    time.sleep(10)


def main() -> None:
    dist.init_process_group("gloo")
    tensor = torch.full((3, 4), float(dist.get_rank()))
    for _ in range(10):
        dist.all_reduce(tensor)
    if dist.get_rank() == 0:
        extra_all_reduce(tensor)
    evaluate()


if __name__ == "__main__":
    main()
