"""One rank of tests/gpu/run.py; argv: the case."""

import ctypes
import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

if not os.environ.get("GPU_NO_FR"):
    import fr
import torch
import torch.distributed as dist

CASE = sys.argv[1]
# Without a GPU: what of a case is the host's, to try these scripts.
REHEARSAL = bool(os.environ.get("GPU_REHEARSAL"))
DEVICE = "cpu" if REHEARSAL else "cuda"
RANK = int(os.environ["RANK"])
HOME = Path(os.environ["GPU_HOME"])


def keep(name, text):
    """Whole or not at all: the process may be aborted at any time."""
    part = HOME / f"part.{name}.{RANK}"
    part.write_text(text)
    part.rename(HOME / f"{name}.{RANK}")


def result(**values):
    keep("result", json.dumps(values))


def synchronize():
    if not REHEARSAL:
        torch.cuda.synchronize()


def default_group():
    (world,) = [g for g in fr.status()["groups"] if g["desc"] == "default_pg"]
    return world


def settled():
    """The default group, once fr has seen the end of all that was issued."""
    for _ in range(500):
        world = default_group()
        if world["in_flight"] == 0:
            break
        time.sleep(0.01)
    return world


def captured_all_reduce(x, replays, before=lambda: None):
    """A graph of an operation, which has to be reset before its communicator ends."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before()
        dist.all_reduce(x)
    for _ in range(replays):
        graph.replay()
    synchronize()
    return graph


def block_us(call, n=200):
    """What one of n calls takes: until the last is issued, until it has ended. Fewer than a launch
    queue holds: a full one has the host wait for the device."""
    synchronize()
    began = time.perf_counter()
    for _ in range(n):
        call()
    issued = time.perf_counter()
    synchronize()
    return (issued - began) / n * 1e6, (time.perf_counter() - began) / n * 1e6


def samples_of_device(lib):
    out = (ctypes.c_uint64 * 3)()
    lib.fr_torch_samples(out)
    return dict(zip(("recorded", "missed", "waiting"), out, strict=True))


def settled_samples(lib):
    for _ in range(500):
        found = samples_of_device(lib)
        if found["waiting"] == 0:
            break
        time.sleep(0.01)
    return found


def digest(lib, name, tensor):
    out = (ctypes.c_uint64 * 4)()
    function = lib[name]
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint64 * 4]
    return function(tensor._cdata, out), list(out)


def samples(x):
    """Digests of the device and of the host are the same; sampling makes no synchronisation, and
    nothing in a graph."""
    from fr import adapter

    lib = adapter._library
    if REHEARSAL:
        lib.fr_torch_rehearse(2)
    differ = []
    floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
    floats += [torch.float8_e4m3fn, torch.float8_e5m2]
    for dtype in [*floats, torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64]:
        for n in (1, 70001, 20 << 20):
            tensor = torch.arange(n).remainder(100).float()
            tensor[: n // 3] = math.nan if dtype in floats else 1
            tensor = tensor.to(dtype)
            device = tensor.to(DEVICE)
            host = digest(lib, "fr_torch_digest", tensor)
            if digest(lib, "fr_torch_device_digest", device) != host:
                differ.append(f"{dtype} {n}")
    out = torch.empty(2 * x.numel(), device=DEVICE)
    before = settled_samples(lib)
    if not REHEARSAL:
        torch.cuda.set_sync_debug_mode("error")
    for _ in range(20):
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.all_gather_into_tensor(out, x, async_op=True).get_future().wait()
        synchronize()  # a device that is behind has more on their way than there is room for
    if not REHEARSAL:
        torch.cuda.set_sync_debug_mode("default")
    after = settled_samples(lib)
    synchronize()
    if not REHEARSAL:
        captured_all_reduce(x, replays=1).reset()
    big = torch.zeros(1 << 28, dtype=torch.bfloat16, device=DEVICE)
    digest(lib, "fr_torch_device_digest", big)
    began = time.perf_counter()
    digest(lib, "fr_torch_device_digest", big)
    result(
        differ=differ,
        recorded=after["recorded"] - before["recorded"],
        missed=after["missed"] - before["missed"],
        in_graph=settled_samples(lib)["recorded"] - after["recorded"],
        gib_per_s=0.5 / (time.perf_counter() - began),
    )


def nan_origin():
    """A job's steps; rank 1 puts NaN into its gradients in the 20th."""
    if REHEARSAL:
        from fr import adapter

        adapter._library.fr_torch_rehearse(2)
    weights = torch.ones(1000, device=DEVICE)
    for n in range(1, 101):
        fr.step(n)
        gradients = weights.clone()
        if RANK == 1 and n == 20:
            gradients[3] = math.nan
        dist.all_reduce(gradients)
        weights = gradients / 2
        time.sleep(0.03)


def send_to_oneself(x):
    splits = [x.numel() if peer == RANK else 0 for peer in range(dist.get_world_size())]
    dist.all_to_all_single(torch.empty_like(x), x, splits, splits)


def ring_exchange(x):
    world = dist.get_world_size()
    ops = [dist.P2POp(dist.isend, x, (RANK + 1) % world)]
    ops += [dist.P2POp(dist.irecv, torch.empty_like(x), (RANK - 1) % world)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def launch_queue(x):
    """Issues until the host waits for the device, which waits for the last rank."""
    if RANK == dist.get_world_size() - 1:
        time.sleep(600)
    x.mul_(0.5)  # a kernel's first launch may wait for the device
    synchronize()
    before = settled()["enqueued"]
    issued = 0

    def watch():
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < 3:
            if issued != seen:
                seen, since = issued, time.monotonic()
            time.sleep(0.01)
        result(in_flight=default_group()["enqueued"] - before, issued=issued)

    threading.Thread(target=watch, daemon=True).start()
    while True:
        dist.all_reduce(x)
        issued += 1
        for _ in range(int(os.environ["GPU_KERNELS"])):
            x.mul_(0.5)


def main():
    if not REHEARSAL:
        torch.cuda.set_device(0)
    dist.init_process_group("gloo" if REHEARSAL else "nccl", device_id=None)
    x = torch.ones(1 << 16, device=DEVICE)
    for _ in range(3):
        dist.all_reduce(x)
    synchronize()
    if not os.environ.get("GPU_NO_FR"):
        keep("interface", str(fr.status().get("layers", {}).get("nccl", "")))
    if CASE == "healthy":
        out = torch.empty(2 << 16, device="cuda")
        dist.all_gather_into_tensor(out, x)
        dist.broadcast(x, 0)
        dist.reduce_scatter_tensor(x, out)
        dist.barrier()
        synchronize()
        world = settled()
        result(
            enqueued=world["enqueued"],
            completed=world["completed"],
            device=fr.status()["device"],
        )
    elif CASE == "events":
        big = torch.ones(1 << 22, device="cuda")
        around = []
        for _ in range(10):
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            dist.all_reduce(big)
            pair[1].record()
            around.append(pair)
        synchronize()
        world = settled()
        entries = fr.snapshot()["entries"]
        result(
            enqueued=world["enqueued"],
            completed=world["completed"],
            device=fr.status()["device"],
            fr_ms=[e["duration_ms"] for e in entries if e.get("duration_ms")][-10:],
            torch_ms=[a.elapsed_time(b) for a, b in around],
        )
    elif CASE == "skip":
        if RANK == 1:
            time.sleep(600)
        dist.all_reduce(x)
        synchronize()
    elif CASE == "skip_broadcast":
        if RANK == 1:
            time.sleep(600)
        dist.broadcast(x, 1)
        synchronize()
    elif CASE == "stopped_peer":
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            dist.send(x, 0)
        else:
            dist.recv(x, 1)
        synchronize()
    elif CASE == "self_sends":
        for _ in range(3):
            send_to_oneself(x)
        synchronize()
        time.sleep(1.5 * float(os.environ["FR_TIMEOUT_S"]))  # in which a hang would show
        result(completed=settled()["completed"])
    elif CASE == "skip_after_self_sends":
        send_to_oneself(x)
        if RANK == 1:
            time.sleep(600)
        dist.all_reduce(x)
        synchronize()
    elif CASE == "exchange":  # round a ring of three, in which rank 1 does not come
        ring_exchange(x)
        synchronize()
        if RANK == 1:
            time.sleep(600)
        ring_exchange(x)
        synchronize()
    elif CASE == "skip_of_replay":
        captured = captured_all_reduce(x, replays=2)
        if RANK == 1:
            time.sleep(600)
        captured.replay()
        synchronize()
    elif CASE == "launch_queue":
        launch_queue(x)
    elif CASE == "behind_graph":
        long = captured_all_reduce(x, 0, lambda: torch.cuda._sleep(1 << 31))  # about a second
        before = settled()["completed"]
        long.replay()
        began = time.perf_counter()
        dist.all_reduce(x)
        issue_us = (time.perf_counter() - began) * 1e6
        running = default_group()["in_flight"]
        synchronize()
        after = settled()["completed"]
        for _ in range(3):
            dist.all_reduce(x)
        synchronize()
        result(
            before=before,
            after=after,
            later=settled()["completed"],
            running=running,
            issue_us=issue_us,
        )
        long.reset()
    elif CASE == "killed":
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(x)
        synchronize()
    elif CASE == "stuck_stream":
        if RANK == 1:
            torch.cuda._sleep(1 << 40)  # a kernel that spins for minutes
        dist.all_reduce(x)
        synchronize()
    elif CASE == "graph":
        before = settled()["enqueued"]
        captured = captured_all_reduce(x, replays=5)
        world = settled()
        result(
            before=before,
            enqueued=world["enqueued"],
            in_flight=world["in_flight"],
            replays=5,
            device=fr.status()["device"],
        )
        captured.reset()
    elif CASE == "graph_beside_eager":
        captured = captured_all_reduce(x, replays=0)
        for _ in range(14):
            captured.replay()
            dist.all_reduce(x)
        synchronize()
        result(steps=14, in_flight=settled()["in_flight"])
        captured.reset()
    elif CASE == "skip_after_graph":
        captured = captured_all_reduce(x, replays=3)  # alive meanwhile
        dist.all_reduce(x)
        synchronize()
        if RANK == 1:
            time.sleep(600)
        dist.all_reduce(x)
        synchronize()
    elif CASE == "graph_outlives_group":
        captured = captured_all_reduce(x, replays=1)
        dist.destroy_process_group()  # NCCL waits until the graph is gone
        captured.reset()
        return
    elif CASE == "illegal_access":
        if RANK == 1:
            index = torch.full((1,), 1 << 40, device="cuda")
            x[index] = 1  # asynchronous device-side error
        dist.all_reduce(x)
        synchronize()
    elif CASE == "samples":
        samples(x)
    elif CASE == "nan_origin":
        nan_origin()
    elif CASE == "overhead":
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= 8:  # one rank's threads stay out of the other's way
            os.sched_setaffinity(0, cores[4 * RANK : 4 * RANK + 4])
        small = torch.ones(256, device=DEVICE)
        alone = [dist.new_group([rank]) for rank in range(2)][RANK]
        block_us(lambda: dist.all_reduce(small))
        block_us(lambda: dist.all_reduce(small, group=alone))
        both = [block_us(lambda: dist.all_reduce(small)) for _ in range(3)]
        only = [block_us(lambda: dist.all_reduce(small, group=alone)) for _ in range(40)]
        result(
            issue_us=[issue for issue, _ in both],
            total_us=[total for _, total in both],
            alone_us=[issue for issue, _ in only],
        )
    dist.destroy_process_group()


main()
