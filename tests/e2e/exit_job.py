"""One rank that works and destroys its groups; a thread of rank 2 then waits for the file `go`."""

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr  # noqa: F401


def upload():
    while not Path("go").exists():
        time.sleep(0.05)  # @upload


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if os.environ["RANK"] == "2":
    threading.Thread(target=upload).start()
dist.destroy_process_group()
