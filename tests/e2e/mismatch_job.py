"""One rank of a job that does not hang: its ranks issue different operations, or all is well.

Lines marked `# @name` are looked up by test_mismatch.py.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
SCRATCH = Path(os.environ["E2E_SCRATCH"])
GUILTY = RANK == 1
STEPS = 20


def sums(x):
    dist.all_reduce(x)  # @sums


def losses(x):
    dist.all_reduce(x)  # @losses


def step(n):
    """Two sums of the same size, as of a bucket of gradients and of another."""
    gradients, others = torch.ones(64), torch.ones(64)
    calls = [lambda: sums(gradients), lambda: losses(others)]
    for call in reversed(calls) if GUILTY and fault == "exchanged" and n == STEPS else calls:
        call()


def reduce_op(n):
    op = dist.ReduceOp.MAX if GUILTY and n == STEPS else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(64), op=op)  # @reduce_op


def dtype(n):
    """As many bytes; gloo sums what it takes them for."""
    kind = torch.int32 if GUILTY and n == STEPS else torch.float32
    dist.all_reduce(torch.ones(64, dtype=kind))  # @dtype


weights = torch.ones(64)


def nan(n):
    global weights
    gradients = weights.clone()
    if GUILTY and n == STEPS:
        gradients[3] = float("nan")
    dist.all_reduce(gradients)  # @nan
    weights = gradients / WORLD


def overflow(n):
    """As a gradient scaler makes it: the step is left out, the next one is clean."""
    scaled = torch.ones(64, dtype=torch.bfloat16)
    if GUILTY and n % 10 == 0:
        scaled[3] = float("inf")
    dist.all_reduce(scaled)


def early_write(n):
    """Rank 1 writes to its buffer before it waits for the operation."""
    x = torch.ones(8)
    work = dist.all_reduce(x, async_op=True)  # @early_write
    if GUILTY and n == STEPS:
        while not bool((x == WORLD).all()):
            time.sleep(0.001)
        x[3] += 1
    work.wait()


model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))


def replicas(n):
    if n == 1:
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.25)
    if n == STEPS:
        assert fr.check_replicas(model) == []
        if GUILTY:
            model[0].bias.data.view(torch.int32)[1] ^= 1
        told = fr.check_replicas(model)
        (SCRATCH / f"replicas.{RANK}").write_text("\n".join(told))


def healthy(n):
    """Differences between ranks that are no mistake."""
    # all_to_all and all_gather as the data have it
    to = [int(k) for k in torch.randint(1, 9, (WORLD,))]
    counts = torch.empty(WORLD, dtype=torch.int64)
    dist.all_to_all_single(counts, torch.tensor(to))
    rows = torch.ones(sum(to), 4)
    taken = torch.empty(int(counts.sum()), 4)
    dist.all_to_all_single(taken, rows, counts.tolist(), to)
    # objects of any size
    everybody = [None] * WORLD
    dist.all_gather_object(everybody, {"rank": RANK, "text": "x" * (RANK * 100 + n)})
    assert [e["rank"] for e in everybody] == list(range(WORLD))
    box = ["y" * n if RANK == 0 else None]
    dist.broadcast_object_list(box, src=0)
    dist.gather_object(RANK, [None] * WORLD if RANK == 0 else None, dst=0)
    own = [None]
    dist.scatter_object_list(own, list(range(WORLD)) if RANK == 0 else None, src=0)
    # roots with a branch of their own
    for root in range(WORLD):
        if root == RANK:
            dist.broadcast(torch.ones(8), src=root)
        else:
            dist.broadcast(torch.empty(8), src=root)
        if root == RANK:  # a broadcast made of a sum
            dist.all_reduce(torch.ones(8))
        else:
            dist.all_reduce(torch.zeros(8))
    # a pipeline
    if RANK > 0:
        dist.recv(torch.empty(RANK + 1), src=RANK - 1)
    if RANK < WORLD - 1:
        dist.send(torch.ones(RANK + 2), dst=RANK + 1)
    # a rank that has nothing to give, now and then; a reduce and a scatter by their root
    if (n + RANK) % 7 == 0:
        dist.all_reduce(torch.zeros(3))
    else:
        dist.all_reduce(torch.ones(3))
    dist.reduce(torch.ones(5), dst=n % WORLD)
    parts = [torch.ones(6) for _ in range(WORLD)] if RANK == 0 else None
    dist.scatter(torch.empty(6), parts, src=0)
    # groups of some, among them one of rank 0 alone that evaluates
    dist.all_reduce(torch.ones(2 + RANK // 2), group=pairs[RANK // 2])
    if RANK == 0 and n % 5 == 0:
        for _ in range(n):
            dist.all_reduce(torch.ones(n), group=alone)
    # threads, each with a group of its own
    threads = [threading.Thread(target=many, args=(g,)) for g in by_thread]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def many(group):
    for k in range(5):
        dist.all_reduce(torch.ones(1 + k), group=group)


fault = sys.argv[1]
dist.init_process_group("gloo")
if os.environ.get("REHEARSE_DEVICE"):  # tensors are sampled as if they lay on a device
    from fr import adapter

    adapter._library.fr_torch_rehearse(2)
pairs = [dist.new_group([2 * k, 2 * k + 1]) for k in range(WORLD // 2)]
alone = dist.new_group([0])
by_thread = [dist.new_group(list(range(WORLD))) for _ in range(2)]
number = 0
dumped = None
running = torch.ones(1)
while running.item() == 1:
    number += 1
    fr.step(number)
    {"exchanged": step}.get(fault, globals().get(fault))(number)
    if RANK == 0 and (SCRATCH / "told").exists() and not dumped:
        dumped = fr.dump()
    if number == STEPS:
        (SCRATCH / f"reached.{RANK}").touch()
    time.sleep(0.01)
    running = torch.tensor([0.0 if (SCRATCH / "stop").exists() else 1.0])
    dist.broadcast(running, src=0)
(SCRATCH / f"steps.{RANK}").write_text(str(number))
dist.barrier()
