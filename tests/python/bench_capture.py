"""What recording costs the thread that issues a collective; PyTorch's own recorder in the same run.

    python tests/python/bench_capture.py [rounds]

gloo, world size 1, asynchronous all_reduce of 8 floats, a stack of 15 Python frames, CPU time of
the issuing thread (what gloo's own threads do is not counted). Each round runs every variant once
in a fresh process; within the process of fr the adapter is taken out and put back in turns, so that
both figures come from the same process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

VARIANTS = ("plain", "fr", "fr, no stacks", "torch")
BATCH = 250
BATCHES = 60
DEPTH = 12  # with the frames of torch and of this file: 15


def _measure(issue, depth):
    """CPU ns per issue over one batch, called `depth` frames down."""
    if depth:
        return _measure(issue, depth - 1)
    works = []
    begin = time.thread_time_ns()
    for _ in range(BATCH):
        works.append(issue())
    cost = (time.thread_time_ns() - begin) / BATCH
    for work in works:
        work.wait()
    return cost


def _child(variant: str) -> None:
    if variant.startswith("fr"):
        import fr
        from fr import adapter
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(os.environ.get("BENCH_BACKEND", "gloo"), rank=0, world_size=1)
    tensor = torch.ones(8)

    def issue():
        return dist.all_reduce(tensor, async_op=True)

    for _ in range(5):
        _measure(issue, DEPTH)
    result = {"on": [], "off": []}
    for _ in range(BATCHES):
        result["on"].append(_measure(issue, DEPTH))
        if variant.startswith("fr"):
            adapter.uninstall()
            result["off"].append(_measure(issue, DEPTH))
            adapter.load()
    if variant == "fr":
        assert fr.status()["python"]["problems"] == [], fr.status()
    dist.destroy_process_group()
    print(json.dumps(result))


def _run(variant: str) -> dict:
    env = dict(
        os.environ,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(20000 + os.getpid() % 20000),
        RANK="0",
        WORLD_SIZE="1",
        FR_LOG="error",
        FR_JOB="bench",
    )
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        env[name] = "2000" if variant == "torch" else "0"
    if variant.startswith("fr"):
        env["FR_BUFFER_SIZE"] = "16384"
        env["FR_STACKS"] = "off" if "no stacks" in variant else "python"
    done = subprocess.run(
        [sys.executable, __file__, "--child", variant], env=env, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(f"{variant}: {done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _cpu() -> str:
    with open("/proc/cpuinfo") as info:
        return next((line.split(":")[1].strip() for line in info if "model name" in line), "?")


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2])
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{_cpu()}, {os.cpu_count()} cores; {rounds} rounds x {BATCHES} batches of {BATCH}")
    results = {v: {"on": [], "off": []} for v in VARIANTS}
    for _ in range(rounds):
        for variant in VARIANTS:
            for key, values in _run(variant).items():
                results[variant][key] += values
    plain = results["plain"]["on"]
    print(
        "CPU of the issuing thread per all_reduce, ns   median     p99   added: median  quartiles"
    )
    for variant in VARIANTS:
        on = results[variant]["on"]
        line = f"  {variant:41} {statistics.median(on):8.0f} {sorted(on)[int(len(on) * 0.99)]:7.0f}"
        off = results[variant]["off"] or plain
        if variant != "plain":
            # Within a process neighbouring batches are compared, else batches of the same number.
            low, middle, high = statistics.quantiles(
                [a - b for a, b in zip(on, off, strict=False)], n=4
            )
            line += f" {middle:+15.0f}  {low:+.0f}..{high:+.0f}"
        print(line)


if __name__ == "__main__":
    main()
