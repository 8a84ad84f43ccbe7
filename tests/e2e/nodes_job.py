"""A rank of a job over nodes: some steps, then what the file `go` of its node says.

go: "hang" - the rank in FR_TEST_GUILTY does not come; "SUM", "MAX" - all_reduce; "dump RANK" -
that rank dumps by hand, and all go on; "save" - all wait 3 s for rank 0, which sleeps, then for
rank 1; "miss RANK" - that rank does not come there; "stop RANK" - it comes and is stopped; "end".
`up.RANK` in the working directory holds what fr.status() says of the nodes.
"""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr


def save(late=-1, stopped=-1):
    if late == RANK:
        time.sleep(3)
    work = dist.all_reduce(torch.ones(1 << 24), async_op=True)
    if stopped == RANK:
        os.kill(os.getpid(), signal.SIGSTOP)
    work.wait()


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
        elif go == "save":
            save(late=0)
            save(late=1)
            Path(f"done.{RANK}").touch()
        elif go.startswith("miss "):
            save() if go != f"miss {RANK}" else time.sleep(1000)
        elif go.startswith("stop "):
            save(stopped=int(go.split()[1]))
        elif go in ("SUM", "MAX"):
            dist.all_reduce(torch.ones(4), op=getattr(dist.ReduceOp, go))
            Path(f"done.{RANK}").touch()
        elif go == f"dump {RANK}":
            fr.dump("by hand")
    time.sleep(0.02)
dist.destroy_process_group()
