"""fr on a real GPU: two ranks on one device, real NCCL, real hangs. Not part of `make test`.

    make test-gpu [PYTHON=...] [ONLY="CASE ..."]       where this machine has a GPU
    python tests/gpu/run.py --wheel fr-*.whl [--only CASE ...] [--rehearse] [--keep DIR]

Needs a Python with a CUDA build of torch, and nothing else: fr comes from the wheel (unpacked into
a temporary directory) or is installed already; no network is used. Prints one line per case and a
table of overheads; exit status 0 all passed, 1 some failed, 77 no GPU here: nothing was run. A case
takes less than two minutes. --rehearse: without a GPU, over gloo and the host's memory, the cases
that need no device: what is tried is this script, the wheel and the adapter. --keep DIR: logs and
dumps of every job, as DIR/CASE.N. README.md says more.

Two ranks share one GPU through distinct NCCL_HOSTIDs: NCCL takes them for two nodes and uses its
socket transport over loopback, so that network phases are seen too.
"""

import argparse
import atexit
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANK_SCRIPT = HERE / "rank.py"
PATIENCE_S = 100


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Job:
    """Ranks of rank.py and what they leave."""

    def __init__(self, base, case, ranks, env):
        self.home = Path(tempfile.mkdtemp(prefix=f"fr-gpu-{case}-"))
        self.dumps = self.home / "dumps"
        (self.home / "shm").mkdir()
        port = str(free_port())
        self.processes = []
        for rank in range(ranks):
            own = base | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "NCCL_HOSTID": f"fr-rank-{rank}",
                "NCCL_NET": "Socket",
                "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_MNNVL_ENABLE": "0",
                "NCCL_MAX_CTAS": "2",
                "NCCL_RAS_ADDR": f"localhost:{free_port()}",
                "FR_JOB": "gpu",
                "FR_DUMP_DIR": str(self.dumps),
                "FR_SHM_DIR": str(self.home / "shm"),
                "FR_WARN_S": "2",
                "FR_TIMEOUT_S": "4",
                "GPU_HOME": str(self.home),
            }
            own |= {k: v for k, v in env.items() if v is not None}
            log = (self.home / f"log.{rank}").open("w")
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(RANK_SCRIPT), case], env=own, stdout=log, stderr=log
                )
            )

    def log(self):
        return "\n".join(p.read_text() for p in sorted(self.home.glob("log.*")))

    def wait_exit(self):
        codes = [p.wait(timeout=PATIENCE_S) for p in self.processes]
        if any(codes):
            raise AssertionError(f"exit {codes}\n{self.log()}")
        return self

    def result(self, rank=0):
        return json.loads((self.home / f"result.{rank}").read_text())

    def await_that(self, what, come, every_s=0.05):
        """What come() returns, once it is true."""
        end = time.monotonic() + PATIENCE_S
        while not (found := come()):
            if time.monotonic() > end:
                raise AssertionError(f"no {what() if callable(what) else what}\n{self.log()}")
            time.sleep(every_s)
        return found

    def wait_result(self, rank):
        """Of a rank that goes on, or hangs, after it wrote it."""
        self.await_that(f"result of rank {rank}", (self.home / f"result.{rank}").exists)
        return self.result(rank)

    def interface(self):
        """What NCCL asked fr for, of whichever rank has written it."""
        for path in sorted(self.home.glob("interface.*")):
            return path.read_text()
        return ""

    def wait_dumps(self, ranks=(0, 1)):
        def come():
            return all(list(self.dumps.glob(f"gpu.a0.r{r}.*")) for r in ranks)

        self.await_that(f"dumps of {ranks}", come)
        return self

    def verdict(self, frtrace, kinds, ranks, word=""):
        """Once it is this one: making a communicator may be slow, and be an incident before it."""
        said = {}

        def come():
            got = subprocess.run(
                [frtrace, "--json", str(self.dumps)], capture_output=True, text=True, timeout=60
            )
            said.update(json.loads(got.stdout)["verdict"] if got.stdout else {})
            return (
                said
                and said["kind"] in kinds
                and said["ranks"] == ranks
                and word in said["summary"]
                and said["summary"]
            )

        return self.await_that(lambda: f"such verdict, but {said}", come, every_s=0.5)

    def end(self, keep=None):
        for p in self.processes:
            if p.poll() is None:
                p.send_signal(signal.SIGKILL)
                p.wait()
        if keep:
            shutil.copytree(self.home, keep, ignore=shutil.ignore_patterns("shm"))
        shutil.rmtree(self.home, ignore_errors=True)


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def healthy(run, frtrace):
    job = run("healthy").wait_exit()
    got = job.result()
    expect(got["enqueued"] == got["completed"] > 0, got)
    expect(got["device"]["timed_operations"] >= got["completed"], got)
    expect(not any(got["device"]["losses"].values()), got)
    return f"{got['completed']} operations followed to their end, all with device times"


EVENTS_ALONE = {"FR_TIMING": "events", "NCCL_PROFILER_PLUGIN": "none"}


def events(run, frtrace):
    """CUDA events alone: NCCL's own stamps are off. torch's events lie around ours."""
    got = run("events", **EVENTS_ALONE).wait_exit().result()
    expect(got["enqueued"] == got["completed"] > 0, got)
    expect(got["device"]["events_timed"] >= got["completed"], got)
    expect(not any(got["device"]["losses"].values()), got)
    ours, theirs = got["fr_ms"], got["torch_ms"]
    expect(len(ours) == len(theirs), got)
    expect(all(0 < a <= b + 0.2 for a, b in zip(ours, theirs, strict=True)), got)
    expect(sum(ours) > 0.3 * sum(theirs), got)
    mean = [sum(ms) / len(ms) for ms in (ours, theirs)]
    return f"{mean[0]:.3f} ms by fr's events, {mean[1]:.3f} by torch's around them"


# No event of fr's, nothing told by NCCL: torch's own events, polled by its watchdog thread, are all
# there is.
WAITS_ALONE = {"FR_TIMING": "auto", "NCCL_PROFILER_PLUGIN": "none"}


def own_waits(run, frtrace):
    got = run("healthy", **WAITS_ALONE).wait_exit().result()
    expect(got["enqueued"] == got["completed"] > 0, got)
    expect(got["device"]["followed"] >= got["completed"], got)
    expect(not any(got["device"]["losses"].values()), got)
    return f"{got['completed']} operations followed to their end by torch's own events"


def skip_by_own_waits(run, frtrace):
    return run("skip", **WAITS_ALONE).wait_dumps().verdict(frtrace, ["missing"], [1])


def events_beside_stamps(run, frtrace):
    got = run("events", FR_TIMING="events").wait_exit().result()
    expect(got["enqueued"] == got["completed"] > 0, got)
    expect(not any(got["device"]["losses"].values()), got)
    return f"{got['completed']} operations followed to their end"


def skip(run, frtrace):
    return run("skip").wait_dumps().verdict(frtrace, ["missing"], [1])


def killed(run, frtrace):
    return run("killed").wait_dumps((0,)).verdict(frtrace, ["exited"], [1])


def stuck_stream(run, frtrace):
    return run("stuck_stream").wait_dumps().verdict(frtrace, ["device"], [1])


def stuck_stream_by_events(run, frtrace):
    return run("stuck_stream", **EVENTS_ALONE).wait_dumps().verdict(frtrace, ["device"], [1])


def graph(run, frtrace):
    got = run("graph").wait_exit().result()
    expect(got["enqueued"] - got["before"] == 1 and got["in_flight"] == 0, got)
    return f"captured once, {got['replays']} replays made no record"


def graph_with_events(run, frtrace):
    got = run("graph", FR_TIMING="events").wait_exit().result()
    expect(got["enqueued"] - got["before"] == 1 and got["in_flight"] == 0, got)
    expect(got["device"]["losses"]["events_captured"] >= 1, got)
    return "no event of ours in the graph"


def launch_queue(run, frtrace):
    """How many collectives a host issues ahead of a device that waits: what CUDA's queue holds."""
    said = []
    for kernels in (0, 1, 4):
        job = run("launch_queue", ranks=4, GPU_KERNELS=str(kernels))
        ahead = [job.wait_result(rank)["in_flight"] for rank in range(3)]
        job.wait_dumps(range(4)).verdict(frtrace, ["missing"], [3])
        said.append(f"{ahead} with {kernels} kernels after each")
    return "in flight when the hosts of three ranks stop: " + "; ".join(said)


def illegal_access(run, frtrace):
    # torch's own watchdog may abort the rank at any time: its dump is what there is.
    job = run("illegal_access").wait_dumps((1,))
    return job.verdict(frtrace, ["device", "exited"], [1], "CUDA error")


def skip_broadcast(run, frtrace):
    """From NCCL 2.29.2 on a broadcast is reported by its call alone: torch's waits show it."""
    return run("skip_broadcast").wait_dumps().verdict(frtrace, ["missing"], [1])


def stopped_peer(run, frtrace):
    return run("stopped_peer").wait_dumps().verdict(frtrace, ["device", "missing"], [1])


def self_sends(run, frtrace):
    """What a rank sends itself has no kernel channels: it may not look like a hang."""
    job = run("self_sends").wait_exit()
    expect(not list(job.dumps.glob("*.fr")), f"a dump in {job.dumps}")
    return f"{job.result()['completed']} operations, no dump"


def skip_after_self_sends(run, frtrace):
    """NCCL's host and device number kernels apart from then on: their reports prove nothing."""
    return run("skip_after_self_sends").wait_dumps().verdict(frtrace, ["missing"], [1])


def exchange(run, frtrace):
    """A send and a receive of one group are one piece of work: its end is told too early. Rank 0 is
    through: what rank 2 sent has come, and what it sends itself is in a buffer."""
    job = run("exchange", ranks=3).wait_dumps((1, 2))
    return job.verdict(frtrace, ["missing"], [1])


def skip_of_replay(run, frtrace):
    """What a graph replays makes no record: what fr says of it, or that it wrote nothing."""
    job = run("skip_of_replay")
    time.sleep(12)
    got = subprocess.run([frtrace, str(job.dumps)], capture_output=True, text=True, timeout=60)
    return f"{len(list(job.dumps.glob('*.fr')))} dumps; " + (got.stdout + got.stderr)[:300]


def behind_graph(run, frtrace):
    """An eager call behind a running graph: its events come when the call is long back."""
    got = run("behind_graph").wait_exit().result()
    expect(got["after"] - got["before"] == 2, got)  # numbers: what is captured has one
    while_it_ran = f"{got['running']} in flight while the graph ran"
    expect(got["later"] - got["after"] == 3, got)
    return f"completed, {while_it_ran}, {got['issue_us']:.0f} us to issue"


def graph_beside_eager(run, frtrace):
    """The communicator ends: NCCL waits for the last kernel that it was asked to report."""
    got = run("graph_beside_eager").wait_exit().result()
    expect(got["in_flight"] == 0, got)
    return f"{got['steps']} steps, and the communicator ended"


def skip_after_graph(run, frtrace):
    """Once a graph has run, NCCL's own reports of kernels are of other operations."""
    return run("skip_after_graph").wait_dumps().verdict(frtrace, ["missing"], [1])


def graph_outlives_group(run, frtrace):
    """From NCCL 2.26 on a communicator's end waits for the graphs that captured its operations."""
    return run("graph_outlives_group").wait_dumps().verdict(frtrace, ["undecided"], [], "graph")


def samples(run, frtrace):
    """FR_FINGERPRINT: an input and an output of each of 60 operations, none in a graph."""
    got = run("samples", FR_FINGERPRINT="1").wait_exit().result()
    expect(not got["differ"], got)
    expect(got["recorded"] + got["missed"] == 120 and got["missed"] <= 12, got)
    expect(got["in_graph"] == 0, got)
    return f"{got['recorded']} recorded, {got['missed']} missed, {got['gib_per_s']:.1f} GiB/s"


def nan_origin(run, frtrace):
    log = run("nan_origin", FR_FINGERPRINT="1").wait_exit().log()
    told = [line for line in log.splitlines() if "NaN entered" in line]
    expect(len(told) == 1 and "at rank 1, step 20," in told[0], log)
    return told[0]


ROUNDS = 2


def measure(run, ways):
    """In turns, so that what a machine does meanwhile meets all ways alike."""
    seen = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, env in ways.items():
            job = run("overhead", **env).wait_exit()
            seen[name] += [job.result(rank) for rank in range(2)]
    rows = [f"us a call of a block of 200, least and median of {ROUNDS} runs of 2 ranks: to issue "
            "(3 blocks), in all, to issue in a group of one rank (40 blocks)"]  # fmt: skip
    for name, results in seen.items():
        said = []
        for key in ("issue_us", "total_us", "alone_us"):
            blocks = [us for got in results for us in got[key]]
            said.append(f"{min(blocks):.2f} {statistics.median(blocks):.2f}")
        rows.append(f"{name}: " + ", ".join(said))
    return "\n    ".join(rows)


def overhead(run, frtrace):
    return measure(run, {
        "without fr": {"GPU_NO_FR": "1"},
        "fr off": {"FR_ENABLE": "0"},
        "wrappers alone": {"NCCL_PROFILER_PLUGIN": "none"},
        "plugin without kernel channels (FR_TIMING=off)": {"FR_TIMING": "off"},
        "default (all of the plugin's events that fr asks for)": {},
    })  # fmt: skip


def overhead_of_events(run, frtrace):
    torch = {"GPU_NO_FR": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    return measure(run, {
        "FR_TIMING=events": {"FR_TIMING": "events"},
        "FR_TIMING=events, wrappers alone": EVENTS_ALONE,
        "PyTorch's recorder": torch,
        "PyTorch's recorder with timing": torch | {"TORCH_NCCL_ENABLE_TIMING": "1"},
    })  # fmt: skip


# case: whether it means anything without a device
CASES = {
    healthy: False,
    events: False,
    events_beside_stamps: False,
    own_waits: False,
    skip_by_own_waits: False,
    skip: True,
    skip_broadcast: True,
    killed: True,
    stopped_peer: True,
    self_sends: True,
    skip_after_self_sends: True,
    exchange: True,
    stuck_stream: False,
    stuck_stream_by_events: False,
    graph: False,
    graph_with_events: False,
    behind_graph: False,
    graph_beside_eager: False,
    skip_after_graph: False,
    skip_of_replay: False,
    graph_outlives_group: False,
    launch_queue: False,
    illegal_access: False,
    samples: True,
    nan_origin: True,
    overhead: True,
    overhead_of_events: False,
}


def parse():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--wheel")
    arguments.add_argument("--only", nargs="+", choices=[c.__name__ for c in CASES], metavar="CASE")
    arguments.add_argument("--rehearse", action="store_true")
    arguments.add_argument("--keep", metavar="DIR")
    return arguments.parse_args()


def own_environment():
    """Of the ranks: nothing of the caller's options, but where the adapter is kept."""
    stripped = ("FR_", "TORCH_", "NCCL_", "GPU_")
    return {k: v for k, v in os.environ.items()
            if not k.startswith(stripped) or k == "FR_CACHE_DIR"}  # fmt: skip


def unpacked(wheel, base):
    """frtrace of the wheel, whose packages every rank then finds; its adapter is made."""
    home = Path(tempfile.mkdtemp(prefix="fr-wheel-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home)
    base["PYTHONPATH"] = f"{home}:{base.get('PYTHONPATH', '')}"
    frtrace = next(home.rglob("scripts/frtrace"))
    os.chmod(frtrace, 0o755)
    base.setdefault("FR_CACHE_DIR", str(home / "cache"))
    # Once, not by the ranks of the first case within its time.
    made = subprocess.run(
        [sys.executable, "-m", "fr", "--build-adapter"], env=base, capture_output=True, text=True
    )
    print("adapter:", (made.stdout + made.stderr).strip().splitlines()[-1])
    return str(frtrace)


def main():
    options = parse()
    try:
        import torch

        has_gpu = torch.cuda.is_available()
    except ImportError:
        has_gpu = False
    if not has_gpu and not options.rehearse:
        print("not run: no GPU, or no CUDA build of torch, in", sys.executable)
        return 77
    base = own_environment()
    if options.rehearse:
        base["GPU_REHEARSAL"] = "1"
    on = "no device" if options.rehearse else torch.cuda.get_device_name(0)
    print(f"{on}, Python {sys.version.split()[0]}, torch {torch.__version__}, "
          f"NCCL {torch.cuda.nccl.version() if torch.version.cuda else None}")  # fmt: skip
    frtrace = unpacked(options.wheel, base) if options.wheel else shutil.which("frtrace")
    failed = 0
    interface = ""
    for case, without_device in CASES.items():
        if options.only and case.__name__ not in options.only:
            continue
        if options.rehearse and not without_device:
            print(f"{case.__name__}: not without a device")
            continue
        jobs = []

        def run(name, jobs=jobs, ranks=2, **env):
            jobs.append(Job(base, name, ranks, env))
            return jobs[-1]

        began = time.monotonic()
        try:
            said = case(run, frtrace)
            print(f"{case.__name__} ({time.monotonic() - began:.0f} s): {said}", flush=True)
        except Exception as problem:
            failed += 1
            print(f"{case.__name__}: FAILED: {problem}", flush=True)
        finally:
            for n, job in enumerate(jobs):
                told = job.interface()
                if told not in ("", interface):
                    interface = told
                    print(f"    {interface}", flush=True)
                keep = options.keep and Path(options.keep) / f"{case.__name__}.{n}"
                job.end(keep)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
