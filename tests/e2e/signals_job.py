"""Ranks that handle a signal themselves; the way is the first argument.

Rank 1 of `leave` and all ranks of `save` end their loop after the signal; those of `go_on` do not.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import fr  # noqa: F401

SCRATCH = Path(os.environ["E2E_SCRATCH"])


class Told(list):
    read = None

    def __bool__(self):
        with contextlib.suppress(BlockingIOError):
            if self.read and self.read():
                self.append("read")
        return len(self) > 0


told = Told()


def python_handler(number):
    signal.signal(number, lambda *_: told.append(number))  # @python


def wakeup_fd(number):
    mine, pythons = socket.socketpair()
    for end in (mine, pythons):
        end.setblocking(False)
    signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(pythons.fileno())
    told.read = lambda: mine.recv(1) and pythons


def c_handler(number):
    library = ctypes.CDLL(SCRATCH / "handler.so")
    library.handle(number)
    told.read = lambda: ctypes.c_int.in_dll(library, "told").value


def keyboard(number):
    pass  # Python's own handler raises KeyboardInterrupt


def train(until):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (SCRATCH / f"pid.{rank}").write_text(str(os.getpid()))
    for _ in range(100000):
        try:
            dist.all_reduce(torch.ones(4))
            time.sleep(0.02)
        except KeyboardInterrupt:
            told.append(signal.SIGINT)
        if until(rank):
            break
    (SCRATCH / f"left.{rank}").touch()
    time.sleep(0.3)  # saves
    dist.destroy_process_group()


async def asynchronous(number, until):
    asyncio.get_running_loop().add_signal_handler(number, told.append, number)
    await asyncio.to_thread(train, until)


def save(_):
    return all_have(told)


def leave(_):
    return bool(told)


def go_on(_):
    return all_have((SCRATCH / "end").exists())


def all_have(flag):
    flag = torch.tensor(float(bool(flag)))
    dist.all_reduce(flag)
    return flag.item() == dist.get_world_size()


how, until, number = sys.argv[1].split("-")
until = globals()[until]
number = int(getattr(signal, number))
if how == "asynchronous":
    asyncio.run(asynchronous(number, until))
else:
    globals()[how](number)
    train(until)
