# A hang in a subgroup holds up everybody, and only one rank is to blame.
#
#     FR_TIMEOUT_S=3 FR_DUMP_DIR=/tmp/fr-subgroup \
#         torchrun --standalone --nproc-per-node 4 examples/03_subgroup_skip.py
#     frtrace /tmp/fr-subgroup
#
# Rank 3 skips an all_reduce of the group {1, 2, 3}. Ranks 1 and 2 wait for it there; rank 0 waits
# for all of them in the world group. The verdict follows these waits to their end: rank 3.

import time

import torch
import torch.distributed as dist

import fr  # noqa: F401


def average_experts(group: dist.ProcessGroup, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, group=group)


def skip_experts() -> None:
    time.sleep(10)


def end_of_step(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    experts = dist.new_group([1, 2, 3], group_desc="experts")
    tensor = torch.ones(8)
    for step in range(5):
        if rank == 3 and step == 4:
            skip_experts()
        elif rank > 0:
            average_experts(experts, tensor)
        end_of_step(tensor)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
