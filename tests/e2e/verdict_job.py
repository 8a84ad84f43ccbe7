"""A rank that counts the signals of its children, and hangs until SIGUSR1."""

import os
import signal

import torch
import torch.distributed as dist

import fr  # noqa: F401

seen = 0


def on_child(*_):
    global seen
    seen += 1


signal.signal(signal.SIGCHLD, on_child)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
work = dist.all_reduce(torch.ones(2), async_op=True) if os.environ["RANK"] == "0" else None
signal.sigwait({signal.SIGUSR1})
try:
    os.waitpid(-1, os.WNOHANG)
    seen += 1
except ChildProcessError:
    pass
print(f"children seen: {seen}", flush=True)
if work is None:
    dist.all_reduce(torch.ones(2))
else:
    work.wait()
dist.destroy_process_group()
