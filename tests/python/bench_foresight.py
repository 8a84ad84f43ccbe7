"""What learned deadlines, the comparison of ranks, samples and attach cost a job.

    python tests/python/bench_foresight.py [rounds] [seconds]

Two ranks on this machine, gloo. Each round runs every variant once, in fresh processes, so that
figures of one run compare; what the machine does besides is in all of them. Asynchronous all_reduce
in batches: CPU time of the issuing thread, and of all threads of both ranks, per operation; CPU
time of libfr's own threads. The record alone: the same call on torch's fake backend, which does no
I/O, and fr.begin and fr.end in a row, wall time.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench_capture import _cpu

sys.path.insert(0, str(Path(__file__).parents[1]))
from torch_fork import Forked

OFF = {"FR_ADAPT": "0", "FR_MISMATCH": "0", "FR_FINGERPRINT": "0", "FR_ATTACH": "0"}
ON = {"FR_ADAPT": "1", "FR_MISMATCH": "1", "FR_FINGERPRINT": "64", "FR_ATTACH": "1"}
VARIANTS = {
    "without fr": None,
    "all of it off": OFF,
    "defaults": {},
    "all of it on, 1 of 64 sampled": ON,
    "the same, a rank per node": ON | {"NODES": "2"},
    "all of it on, each sampled": ON | {"FR_FINGERPRINT": "1"},
}
SIZES = {"8 floats": (8, 50), "1 MiB": (1 << 18, 5)}  # and operations per batch
RECORDS = 1000
WITHOUT_IO = 16  # times RECORDS
RECORD = "fr.begin + fr.end"


def _fr_threads_ns():
    total = 0
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith("fr-"):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def _records(seconds):
    """ns per record, by batch."""
    import fr

    group = fr.group("bench", [0, 1])
    costs = []
    until = time.monotonic() + seconds / 4
    while time.monotonic() < until:
        begin = time.perf_counter_ns()
        for _ in range(RECORDS):
            fr.end(fr.begin(group, "all_reduce"))
        costs.append((time.perf_counter_ns() - begin) / RECORDS)
    return costs


def _without_io(dist):
    """The same of all_reduce on a backend that does nothing."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    group = dist.new_group(backend="fake")
    tensor, costs = torch.zeros(8), []
    for _ in range(WITHOUT_IO):
        begin = time.thread_time_ns()
        for _ in range(RECORDS):
            dist.all_reduce(tensor, group=group)
        costs.append((time.thread_time_ns() - begin) / RECORDS)
    return costs[1:]


def _operations(dist, tensor, n, seconds):
    """Per batch: CPU ns of this thread and of all of this process, per operation."""
    go_on = torch.ones(1)
    issued, spent = [], []
    until = time.monotonic() + seconds
    while go_on.item():
        all_begun, begun = time.process_time_ns(), time.thread_time_ns()
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(n)]
        issued.append((time.thread_time_ns() - begun) / n)
        for work in works:
            work.wait()
        spent.append((time.process_time_ns() - all_begun) / n)
        go_on.fill_(time.monotonic() < until)
        dist.broadcast(go_on, 0)  # rank 0 ends it for both
    return issued[1:], spent[1:]  # without first uses


def _rank(seconds):
    with_fr = os.environ["BENCH_FR"] == "1"
    if with_fr:
        import fr
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if with_fr and "NODES" in os.environ:
        until = time.monotonic() + 30
        while "2 nodes" not in fr.status()["layers"].get("nodes", ""):
            assert time.monotonic() < until, fr.status()["layers"]
            time.sleep(0.05)
    dist.barrier()
    begun, fr_ns = time.monotonic(), _fr_threads_ns()
    result = {
        name: _operations(dist, torch.zeros(size), n, seconds) for name, (size, n) in SIZES.items()
    }
    share = (_fr_threads_ns() - fr_ns) / 1e9 / (time.monotonic() - begun)
    result["fake"] = _without_io(dist)
    if with_fr:
        result[RECORD] = _records(seconds)
        problems = fr.status()["python"]["problems"]
        assert problems == [], problems
    dist.destroy_process_group()
    print(json.dumps(result | {"share": share}))


def _run(options, seconds, scratch):
    ranks = []
    for rank in (0, 1):
        nodes = (options or {}).get("NODES")
        env = {k: v for k, v in os.environ.items() if k == "FR_CACHE_DIR" or k[:3] != "FR_"}
        env |= {"RANK": str(rank), "LOCAL_RANK": "0" if nodes else str(rank), "WORLD_SIZE": "2"}
        env |= {"LOCAL_WORLD_SIZE": "1" if nodes else "2", "MASTER_ADDR": "127.0.0.1"}
        env |= {"MASTER_PORT": str(20000 + os.getpid() % 20000), "FR_LOG": "error"}
        # ranks of one ring directory are a node
        env |= {"FR_SHM_DIR": f"{scratch}/shm{rank if nodes else ''}", "FR_DUMP_DIR": scratch}
        env |= {"BENCH_FR": str(int(options is not None)), **(options or {})}
        command = [sys.executable, __file__, "--rank", str(seconds)]
        ranks.append(Forked(command, env=env, stdout=-1, stderr=-1, text=True))
    said = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("\n".join(error for _, error in said))
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in said]


def _table(title, costs):
    """Of each variant all its batches, in ns."""
    print(f"\n{title:50} {'median':>8} {'quartiles':>15} {'x of off':>9}")
    middles = {name: statistics.median(of) for name, of in costs.items() if of}
    for name, middle in middles.items():
        low, _, high = statistics.quantiles(costs[name], n=4)
        ratio = middle / middles[list(VARIANTS)[1]]
        print(f"  {name:48} {middle:8.0f} {f'{low:.0f} to {high:.0f}':>15} {ratio:9.2f}")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    print(f"{_cpu()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {rounds} rounds")
    runs = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory(prefix="fr-bench-", dir="/dev/shm") as scratch:
        for rings in ("shm", "shm0", "shm1"):
            Path(scratch, rings).mkdir(mode=0o700)
        for _ in range(rounds):
            for name, options in VARIANTS.items():
                runs[name].append(_run(options, seconds, scratch))

    def batches(of):
        return {name: [cost for run in its for cost in of(*run)] for name, its in runs.items()}

    for what in SIZES:
        issued = batches(lambda a, b, what=what: a[what][0] + b[what][0])
        _table(f"all_reduce of {what}, ns of the issuing thread", issued)
    # For small messages, most of the time is the polling of gloo's threads.
    spent = batches(lambda a, b: map(sum, zip(a["1 MiB"][1], b["1 MiB"][1], strict=True)))
    _table("all_reduce of 1 MiB, ns of all threads, both ranks", spent)
    title = "all_reduce of 8 floats that does no I/O, ns"
    _table(title, batches(lambda a, b: a["fake"] + b["fake"]))
    _table(f"{RECORD}, ns", batches(lambda a, b: a.get(RECORD, []) + b.get(RECORD, [])))
    print("\nlibfr's own threads, both ranks together, share of a core:")
    for name, its in runs.items():
        print(f"  {name:48} {statistics.median(a['share'] + b['share'] for a, b in its):8.2%}")


if __name__ == "__main__":
    import torch

    if sys.argv[1:2] == ["--rank"]:
        _rank(float(sys.argv[2]))
    else:
        main()
