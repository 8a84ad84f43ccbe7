"""fr on a real GPU: two ranks on one device, real NCCL, real hangs. Not part of `make test`.

    make test-gpu [PYTHON=...] [ONLY="CASE ..."]       where this machine has a GPU
    python tests/gpu/run.py --wheel fr-*.whl [--only CASE ...] [--rehearse]

Needs a Python with a CUDA build of torch, and nothing else: fr comes from the wheel (unpacked into
a temporary directory) or is installed already; no network is used. Prints one line per case and a
table of overheads; exit status 0 all passed, 1 some failed, 77 no GPU here: nothing was run. A case
takes less than two minutes. --rehearse: without a GPU, over gloo and the host's memory, the cases
that need no device: what is tried is this script, the wheel and the adapter. README.md says more.

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
    """Two ranks of rank.py and what they leave."""

    def __init__(self, base, case, env):
        self.home = Path(tempfile.mkdtemp(prefix=f"fr-gpu-{case}-"))
        self.dumps = self.home / "dumps"
        (self.home / "shm").mkdir()
        port = str(free_port())
        self.processes = []
        for rank in range(2):
            own = base | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "NCCL_HOSTID": f"fr-rank-{rank}",
                "NCCL_NET": "Socket",
                "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_MNNVL_ENABLE": "0",
                "NCCL_MAX_CTAS": "2",
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

    def interface(self):
        """What NCCL asked fr for, of whichever rank has written it."""
        for path in sorted(self.home.glob("interface.*")):
            return path.read_text()
        return ""

    def wait_dumps(self, ranks=(0, 1)):
        end = time.monotonic() + PATIENCE_S
        while not all(list(self.dumps.glob(f"gpu.a0.r{r}.*")) for r in ranks):
            if time.monotonic() > end:
                raise AssertionError(f"no dumps of {ranks}\n{self.log()}")
            time.sleep(0.05)
        return self

    def verdict(self, frtrace):
        got = subprocess.run(
            [frtrace, "--json", str(self.dumps)], capture_output=True, text=True, timeout=60
        )
        return json.loads(got.stdout)["verdict"]

    def end(self):
        for p in self.processes:
            if p.poll() is None:
                p.send_signal(signal.SIGKILL)
                p.wait()
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
    v = run("skip", **WAITS_ALONE).wait_dumps().verdict(frtrace)
    expect((v["kind"], v["ranks"]) == ("missing", [1]), v)
    return v["summary"]


def events_beside_stamps(run, frtrace):
    got = run("events", FR_TIMING="events").wait_exit().result()
    expect(got["enqueued"] == got["completed"] > 0, got)
    expect(not any(got["device"]["losses"].values()), got)
    return f"{got['completed']} operations followed to their end"


def skip(run, frtrace):
    job = run("skip").wait_dumps()
    v = job.verdict(frtrace)
    expect((v["kind"], v["ranks"]) == ("missing", [1]), v)
    return v["summary"]


def killed(run, frtrace):
    job = run("killed").wait_dumps((0,))
    v = job.verdict(frtrace)
    expect((v["kind"], v["ranks"]) == ("exited", [1]), v)
    return v["summary"]


def stuck_stream(run, frtrace):
    job = run("stuck_stream").wait_dumps()
    v = job.verdict(frtrace)
    expect((v["kind"], v["ranks"]) == ("device", [1]), v)
    return v["summary"]


def stuck_stream_by_events(run, frtrace):
    v = run("stuck_stream", **EVENTS_ALONE).wait_dumps().verdict(frtrace)
    expect((v["kind"], v["ranks"]) == ("device", [1]), v)
    return v["summary"]


def graph(run, frtrace):
    got = run("graph").wait_exit().result()
    expect(got["captured"] == 1 and got["enqueued"] - got["before"] == 1, got)
    return f"captured once, {got['replays']} replays made no record"


def graph_with_events(run, frtrace):
    got = run("graph", FR_TIMING="events").wait_exit().result()
    expect(got["captured"] == 1 and got["enqueued"] - got["before"] == 1, got)
    expect(got["device"]["losses"]["events_captured"] >= 1, got)
    return "no event of ours in the graph"


def illegal_access(run, frtrace):
    job = run("illegal_access").wait_dumps((1,))
    # torch's own watchdog may abort the rank at any time from here on: the dump is what there is.
    said = subprocess.run([frtrace, str(job.dumps)], capture_output=True, text=True).stdout
    expect("illegal" in said or "cudaError" in said, said)
    return said.splitlines()[0]


def skip_broadcast(run, frtrace):
    """From NCCL 2.29.2 on a broadcast is reported by its call alone: torch's waits show it."""
    v = run("skip_broadcast", FR_TIMING="auto").wait_dumps().verdict(frtrace)
    expect((v["kind"], v["ranks"]) == ("missing", [1]), v)
    return v["summary"]


def stopped_peer(run, frtrace):
    v = run("stopped_peer").wait_dumps().verdict(frtrace)
    expect(v["kind"] in ("device", "missing") and v["ranks"] == [1], v)
    return v["summary"]


def self_sends(run, frtrace):
    """What a rank sends itself has no kernel channels: it may not look like a hang."""
    job = run("self_sends").wait_exit()
    expect(not list(job.dumps.glob("*.fr")), f"a dump in {job.dumps}")
    return f"{job.result()['completed']} operations, no dump"


def behind_graph(run, frtrace):
    """An eager call behind a running graph: its events come when the call is long back."""
    got = run("behind_graph").wait_exit().result()
    expect(got["after"] - got["before"] == 1, got)
    while_it_ran = f"{got['running']} in flight while the graph ran"
    return f"completed, {while_it_ran}, {got['issue_us']:.0f} us to issue"


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


def measure(run, ways):
    rows = []
    for name, env in ways.items():
        got = run("overhead", **env).wait_exit().result()
        rows.append(
            f"{name}: {got['issue_us']:.2f} us to issue, {got['total_us']:.1f} us in all; "
            f"{got['alone_us']:.2f} us in a group of one rank"
        )
    return "\n    ".join(["medians of 20 blocks of 200 calls", *rows])


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
    stuck_stream: False,
    stuck_stream_by_events: False,
    graph: False,
    graph_with_events: False,
    behind_graph: False,
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
    return arguments.parse_args()


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
    stripped = ("FR_", "TORCH_", "NCCL_", "GPU_")
    base = {k: v for k, v in os.environ.items()
            if not k.startswith(stripped) or k == "FR_CACHE_DIR"}  # fmt: skip
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

        def run(name, jobs=jobs, **env):
            jobs.append(Job(base, name, env))
            return jobs[-1]

        began = time.monotonic()
        try:
            said = case(run, frtrace)
            print(f"{case.__name__} ({time.monotonic() - began:.0f} s): {said}", flush=True)
        except Exception as problem:
            failed += 1
            print(f"{case.__name__}: FAILED: {problem}", flush=True)
        finally:
            for job in jobs:
                told = job.interface()
                if told not in ("", interface):
                    interface = told
                    print(f"    {interface}", flush=True)
                job.end()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
