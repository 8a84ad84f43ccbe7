"""Rank 2 fails before its first group, when another rank records; with FR_TEST_ALL all ranks do, at
once."""

import os
import time
from pathlib import Path

import fr  # noqa: F401


def read_config():
    while not list(Path(os.environ["FR_SHM_DIR"]).rglob("*.ctl")):
        time.sleep(0.1)
    raise KeyError("dataset_root")


if "FR_TEST_ALL" in os.environ:
    raise KeyError("dataset_root")
if os.environ["RANK"] == "2":
    read_config()

import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo")
