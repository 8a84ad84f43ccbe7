# A training job that hangs: four ranks, a small model with DDP on gloo, one bug on rank 2.
#
#     torchrun --standalone --nproc-per-node 4 examples/01_ddp_hang.py --fault skip
#     frtrace fr-dumps/*      # FR_TIMEOUT_S (60) after the hang, when every rank's dump is there
#
# `make demo FAULT=skip` does both, with a low FR_TIMEOUT_S.

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fr

STEPS = 40
FAULT_STEP = 20
FAULT_RANK = 2
FAULTS = ("none", "skip", "sleep", "size", "dtype", "op", "kill", "exit", "exception")


def load_batch(step: int, stuck: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads a batch; `stuck` plays a file system that does not answer."""
    if stuck:
        time.sleep(3600)
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
    return x, x.sum(dim=1, keepdim=True)


def train_step(model: nn.Module, optimizer, batch) -> torch.Tensor:
    x, y = batch
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()  # DDP averages the gradients here
    optimizer.step()
    return loss.detach()


def mean_over_ranks(loss: torch.Tensor) -> float:
    total = loss.clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def mean_over_ranks_double(loss: torch.Tensor) -> float:
    """Somebody's half of a refactoring: the others still reduce a float."""
    total = loss.double()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def mean_per_layer(model: nn.Module, loss: torch.Tensor) -> float:
    """The debug build of the logging code: reduces more than the others do."""
    total = torch.stack([loss] + [p.detach().mean() for p in model.parameters()])
    dist.all_reduce(total)
    return total[0].item() / dist.get_world_size()


def best_loss(loss: torch.Tensor) -> float:
    best = loss.clone()
    dist.broadcast(best, src=0)
    return best.item()


def wait_for_checkpoint(path: str) -> None:
    """Waits until rank 0 has written the checkpoint - which waits for this rank elsewhere."""
    while not os.path.exists(path):
        time.sleep(0.05)


def report(model: nn.Module, loss: torch.Tensor, fault: str) -> float:
    """Mean loss. Every rank has to take the same way through here; `fault` bends one of them."""
    if fault == "skip":  # the bug: a decision that each rank takes by its own clock
        wait_for_checkpoint("/nonexistent/checkpoint.pt")
        return float("nan")
    if fault == "size":
        return mean_per_layer(model, loss)
    if fault == "dtype":
        return mean_over_ranks_double(loss)
    if fault == "op":
        return best_loss(loss)
    if fault == "kill":  # what the kernel does to a process when memory runs out
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit":
        os._exit(3)
    if fault == "exception":
        raise ValueError(f"loss is not finite: {loss.item():.3f}")
    return mean_over_ranks(loss)


def train(wanted: str) -> None:
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        fr.step(step)
        fault = wanted if rank == FAULT_RANK and step == FAULT_STEP else "none"
        with fr.span("load"):
            batch = load_batch(step, stuck=fault == "sleep")
        loss = train_step(model, optimizer, batch)
        mean = report(model, loss, fault)
        if rank == 0 and step % 5 == 0:
            print(f"step {step:3d}  loss {mean:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, default="skip")
    wanted = parser.parse_args().fault
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    train(wanted)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
