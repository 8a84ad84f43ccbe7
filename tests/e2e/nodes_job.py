"""A rank of a job over nodes: some steps, then what the file `go` of its node says.

go: "hang" - the rank in FR_TEST_GUILTY does not come; "SUM", "MAX" - all_reduce; "dump RANK" -
that rank dumps by hand, and all go on; "end". `up.RANK` in the working directory holds what
fr.status() says of the nodes.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr

dist.init_process_group("gloo")
RANK = dist.get_rank()
GUILTY = int(os.environ.get("FR_TEST_GUILTY", "-1"))
for step in range(3):
    fr.step(step)
    dist.all_reduce(torch.ones(4))

done = said = ""
while done != "end":
    now = fr.status()["layers"].get("nodes", "")
    if now != said:
        said = now
        Path(f"up.{RANK}.new").write_text(now)
        Path(f"up.{RANK}.new").rename(f"up.{RANK}")
    go = Path("go").read_text() if Path("go").exists() else ""
    if go != done:
        done = go
        if go == "hang" and RANK != GUILTY:
            dist.all_reduce(torch.ones(4))
        elif go in ("SUM", "MAX"):
            dist.all_reduce(torch.ones(4), op=getattr(dist.ReduceOp, go))
            Path(f"done.{RANK}").touch()
        elif go == f"dump {RANK}":
            fr.dump("by hand")
    time.sleep(0.02)
dist.destroy_process_group()
