#!/usr/bin/env python3
"""Makes the dumps below tests/data/torch/: PyTorch's own Flight Recorder in real jobs of four
ranks, each with one known fault. Needs torch with gloo (2.13 wrote those in the tree).

    make_torch_dumps.py [DIR]          # the cases on gloo, each in a directory of its own
    make_torch_dumps.py --hook [DIR]   # those of the hook recorder; torch 2.14 wrote these

The modification time of a dump is when it was written, but no tree keeps it: what the tests expect
of these files must hold without it.
"""

import datetime
import multiprocessing
import os
import pathlib
import pickletools
import struct
import sys
import sysconfig
import threading
import time

WORLD = 4
STEPS = 4
FAULTS = ["healthy", "skip", "tp_skip", "mismatch", "wrong_op", "crash"]
# backend_fault: PyTorch's hook recorder is attached to the default group. gloo records itself, too;
# the fake backend does not, and completes nothing in the recorder's eyes.
HOOK_FAULTS = ["gloo_skip", "fake_skip", "fake_healthy"]

# Seconds from the fault until the dumps are written: the time for the other ranks to start waiting.
SETTLE = 2.0


def scrub(data):
    """The same pickle without this machine's paths: strings changed in place, opcodes kept."""
    here = str(pathlib.Path(__file__).resolve().parent)
    paths = sysconfig.get_paths()
    places = {
        paths["purelib"]: "/venv/site-packages",
        paths["stdlib"]: "/usr/lib/python3",
        here: "/job",
    }
    out, end = b"", 0
    for op, text, at in pickletools.genops(data):
        if op.name != "BINUNICODE":
            continue
        for place, name in places.items():
            if text.startswith(place):
                out += data[end:at] + b"X" + struct.pack("<I", len(name + text[len(place) :]))
                out += (name + text[len(place) :]).encode()
                end = at + 5 + len(text.encode())
                break
    return out + data[end:]


def train_step(dist, torch, rank, groups, step, fault):
    """Two groups of two ranks (tensor parallel), gradients over all."""
    tensor = torch.ones(64)
    last = step == STEPS - 1
    tp = groups[rank // 2]
    dist.all_reduce(tensor, group=tp)
    if last and fault == "skip" and rank == 2:
        time.sleep(3600)  # its host is elsewhere
    size = 48 if last and fault == "crash" and rank == 1 else 64  # gloo ends that process
    dtype = torch.int32 if last and fault == "mismatch" and rank == 1 else torch.float32
    if last and fault == "wrong_op" and rank == 3:
        dist.broadcast(torch.ones(size), 0)
    else:
        dist.all_reduce(torch.ones(size, dtype=dtype))
    if last and fault == "tp_skip" and rank == 0:
        time.sleep(3600)
    out = [torch.zeros(8) for _ in range(2)]
    dist.all_gather(out, torch.ones(8), group=tp)
    dist.barrier()


def hook_worker(rank, case, port, out_dir):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCH_FR_BUFFER_SIZE="200")
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    backend, fault = case.split("_")
    store = {"store": FakeStore()} if backend == "fake" else {}
    dist.init_process_group(backend, rank=rank, world_size=WORLD, **store)
    recorder = torch._C._distributed_c10d
    hook = recorder.FlightRecorderHook.attach(dist.group.WORLD)

    def dump():
        time.sleep(SETTLE + 4)
        (out_dir / f"trace_rank_{rank}").write_bytes(scrub(recorder._dump_fr_trace()))
        os._exit(0)

    thread = threading.Thread(target=dump)
    thread.start()
    for step in range(STEPS):
        dist.all_reduce(torch.ones(64))
        if fault == "skip" and rank == 2 and step == STEPS - 1:
            break
        dist.all_gather([torch.zeros(8) for _ in range(WORLD)], torch.ones(8))
    thread.join()
    hook.remove()


def worker(rank, fault, port, out_dir):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCH_FR_BUFFER_SIZE="200")
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", rank=rank, world_size=WORLD, timeout=datetime.timedelta(seconds=1800)
    )
    groups = [dist.new_group([0, 1], group_desc="tp"), dist.new_group([2, 3], group_desc="tp")]
    done = threading.Event()

    def dump():
        done.wait(SETTLE + 4)
        time.sleep(SETTLE)
        recorder = torch._C._distributed_c10d
        (out_dir / f"trace_rank_{rank}").write_bytes(scrub(recorder._dump_fr_trace()))
        if fault == "healthy" and rank == 0:
            text = recorder._dump_fr_trace_json()
            (out_dir / f"trace_rank_{rank}.json").write_bytes(
                text if isinstance(text, bytes) else text.encode()
            )
        os._exit(0)

    thread = threading.Thread(target=dump)
    thread.start()
    try:
        for step in range(STEPS):
            train_step(dist, torch, rank, groups, step, fault)
    except RuntimeError as error:  # raised in ranks that still run when a peer has ended
        print(rank, str(error).splitlines()[0][:100])
    done.set()
    thread.join()


def main():
    here = pathlib.Path(__file__).parent
    hook = "--hook" in sys.argv[1:]
    args = [a for a in sys.argv[1:] if a != "--hook"]
    root = pathlib.Path(args[0]) if args else here / "torch"
    context = multiprocessing.get_context("spawn")
    for number, fault in enumerate(HOOK_FAULTS if hook else FAULTS):
        out_dir = root / (f"hook_{fault}" if hook else fault)
        out_dir.mkdir(parents=True, exist_ok=True)
        for old in out_dir.glob("trace_rank_*"):
            old.unlink()
        port = 29700 + number
        ranks = [
            context.Process(
                target=hook_worker if hook else worker, args=(rank, fault, port, out_dir)
            )
            for rank in range(WORLD)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        print(fault, sorted(p.name for p in out_dir.iterdir()))


if __name__ == "__main__":
    main()
