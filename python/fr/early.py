"""Ranks that hang before their first process group: kernels are compiled, data sets indexed then.

A process that a launcher started as a rank is watched from FR_TIMEOUT_S after `import fr` on, if it
has made no group by then: options may change until it has.
"""

from __future__ import annotations

import _thread
import os
import time

from . import _fr
from .problems import harmless

_ANCESTORS = 4  # a shell or two may stand between a rank and its child


def _has_rank(pid: int) -> bool:
    """That process was started with the variables of this one's rank."""
    own = {f"{name}={os.environ.get(name)}".encode() for name in ("RANK", "SLURM_PROCID")}
    with open(f"/proc/{pid}/environ", "rb") as environment:
        return not own.isdisjoint(environment.read().split(b"\0"))


def _is_rank() -> bool:
    """Launchers tell the rank, and what all ranks of the job have in common."""
    env = os.environ
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if env.get(rank, "").isdigit() and env.get(world, "").isdigit():
            common = "SLURM_JOB_ID" if rank == "SLURM_PROCID" else "TORCHELASTIC_RUN_ID"
            named = common in env or "FR_JOB" in env or {"MASTER_ADDR", "MASTER_PORT"} <= set(env)
            return int(env[world]) > 1 and named
    return False


def _is_child_of_rank() -> bool:
    """An ancestor with these variables has loaded libfr: it is the rank."""
    pid = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            with open(f"/proc/{pid}/maps", errors="replace") as maps:
                if "/libfr.so" in maps.read() and _has_rank(pid):
                    return True
            with open(f"/proc/{pid}/stat") as stat:
                pid = int(stat.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        if pid <= 1:
            return False
    return False


@harmless("starting before the first group")
def _start_later(delay_s: float, start, own_pid: int) -> None:
    time.sleep(delay_s)
    if _fr.generation() == 0 and os.getpid() == own_pid and not _is_child_of_rank():
        start()


def watch(start) -> None:
    """Calls start() in FR_TIMEOUT_S where this process is a rank and does not record by then."""
    if _is_rank():
        delay_s = float(_fr.option("FR_TIMEOUT_S"))
        _thread.start_new_thread(_start_later, (delay_s, start, os.getpid()))
