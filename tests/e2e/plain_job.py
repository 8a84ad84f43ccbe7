"""A rank that calls init_process_group as soon as it can, and issues one operation."""

import torch
import torch.distributed as dist

import fr  # noqa: F401

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
