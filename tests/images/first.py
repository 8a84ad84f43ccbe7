"""Prints the first operation that fr records here: of torch where it is installed, else by hand."""

import importlib.util

import fr

if importlib.util.find_spec("torch"):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(8))
else:
    with fr.record(fr.group("by hand", [0]), "all_reduce"):
        pass
status = fr.status()
recorded = [g["desc"] or g["name"] for g in status["groups"] if g["completed"]]
assert recorded, status
print("recorded an operation of", *recorded, status.get("layers") or "")
if importlib.util.find_spec("torch"):
    dist.destroy_process_group()
