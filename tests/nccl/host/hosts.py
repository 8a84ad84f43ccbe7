"""The independent host of NCCL's profiler interface: jobs that hang, and what frtrace says of them.

    python tests/nccl/host/hosts.py [--whole] [CASE ...] [VERSION ...]    prints the table

A job is four processes (program.cpp) over a library that plays NCCL of one version (library.cpp).
"plugin": the library is called past our wrappers and past CUDA, the plugin alone sees it. "whole":
the program is linked against it and against the stand-in for CUDA, and waits for its stream.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FRTRACE = Path(sys.executable).parent / "frtrace"
RANKS = 4
PATIENCE_S = 60  # for one event, on a busy machine

# NCCL's releases and version codes. Their interfaces, in order: 1, 2, 3, 4, 5, 6, 6, 7 (asking for
# kernels is too costly there), 7.
VERSIONS = {
    "2.23": 22304, "2.24": 22403, "2.26": 22602, "2.27": 22703, "2.28": 22809,
    "2.29": 22907, "2.30": 23007, "2.31": 23102, "2.32": 23203,
}  # fmt: skip
V1_2 = ("2.23", "2.24")
V1_3 = (*V1_2, "2.26")
V1_4 = (*V1_3, "2.27")
SILENT = ("2.29", "2.30", "2.31", "2.32")
NO_KERNELS = (*V1_2, "2.31")

# The right verdict of each case; other verdicts for versions that report less. None: no verdict.
ALL = "all"
MISSING = ("missing", [2])
PLUGIN = {
    "never_came": {ALL: MISSING},
    # Up to 2.27 NCCL reports a call only when it is launched, so this one seems not issued.
    "never_launched": {ALL: ("device", [2]), V1_4: MISSING},
    "kernel_never_starts": {ALL: ("device", [1])},
    "one_channel": {ALL: ("device", [1])},
    # Without kernels told of, its work is over when its transfers are.
    "never_ends": {ALL: ("device", [1]), NO_KERNELS: None},
    "takes_nothing": {ALL: ("device", [2])},
    # Without kernels told of, an operation without transfers is taken for one within a node.
    "network_thread": {ALL: ("device", [1]), V1_2: ("undecided", [])},
    "network": {ALL: ("transport", [(1, 2)])},
    "network_forgets": {ALL: ("transport", [(1, 2)])},
    "no_credit": {ALL: ("transport", [(1, 2)])},
    # From 2.29 on NCCL reports only the call of a broadcast.
    "broadcast_network": {ALL: ("transport", [(1, 2)]), SILENT: None},
    "silent_broadcast": {ALL: MISSING, SILENT: None},
    "p2p": {ALL: ("missing", [3])},
    "p2p_network": {ALL: ("transport", [(1, 2)])},
    "p2p_lost": {ALL: ("transport", [(1, 2)])},
    "behind_graph": {ALL: MISSING},
    "exchange": {ALL: MISSING},
    # By its transfers, where no wait of the program's is seen.
    "after_graph": {ALL: MISSING},
    "self_sends": {ALL: MISSING},
    "stale_events": {ALL: MISSING},
    # Up to 2.27 NCCL reports no streams, so it is not known whether one waits behind the other.
    "opposite_orders": {ALL: ("deadlock", [0, 1, 2, 3]), V1_4: ("undecided", [])},
    "many_peers": {ALL: MISSING},
    "many_peers_network": {ALL: ("transport", [(1, 2)])},
    "many_peers_kernel": {ALL: ("device", [1]), NO_KERNELS: None},
}
WHOLE = PLUGIN | {
    "never_launched": {ALL: ("device", [2])},
    "never_ends": {ALL: ("device", [1])},
    # Ranks wait in later operations, and nothing shows which ranks finished this one.
    "many_peers_kernel": {ALL: ("device", [1]), NO_KERNELS: ("undecided", [])},
    # NCCL does not report these operations. The program's waits show which ranks issued them,
    # but not what their devices do.
    "broadcast_network": {ALL: ("transport", [(1, 2)]), SILENT: ("undecided", [])},
    "silent_broadcast": {ALL: MISSING},
    "opposite_orders": {ALL: ("deadlock", [0, 1, 2, 3])},
}


def expected(case, version, whole=False):
    rows = (WHOLE if whole else PLUGIN)[case]
    named = [want for versions, want in rows.items() if versions != ALL and version in versions]
    return named[0] if named else rows[ALL]


def build(home):
    """Both programs, in a directory."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    flags = ["-std=c++20", "-O0", "-pthread", f"-Wl,-rpath,{home}"]
    shared = [*flags, "-shared", "-fPIC"]
    cuda = ROOT / "tests" / "cuda" / "standin_cuda.cpp"
    program = HERE / "program.cpp"
    for command, output in (
        (
            [*shared, "-O1", HERE / "library.cpp", HERE / "network.cpp",
             "-Wl,-soname,libnccl.so.2"],
            "libnccl.so.2",
        ),
        ([*flags, "-DHOST_LOOKED_UP", program], "host_plugin"),
        ([*shared, cuda, "-Wl,-soname,libcuda.so.1"], "libcuda.so.1"),
        (
            [*shared, "-DSTANDIN_CUDART", cuda, home / "libcuda.so.1",
             "-Wl,-soname,libcudart.so.12"],
            "libcudart.so.12",
        ),
        (
            [*flags, "-DHOST_CUDA", program, home / "libnccl.so.2", home / "libcudart.so.12",
             home / "libcuda.so.1"],
            "host_whole",
        ),
    ):  # fmt: skip
        subprocess.run([compiler, *command, "-o", home / output, "-ldl"], check=True)
    return home


def libfr():
    script = "import fr; print(fr._fr.library_path())"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()


class Job:
    """One case on one version."""

    def __init__(self, home, library, scratch, case, version, whole):
        self.dir = scratch / f"{case}-{version}"
        self.dumps = self.dir / "dumps"
        for made in (self.dumps, self.dir / "shm"):
            made.mkdir(parents=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "NCCL_", "HOST_"))}
        kept |= {
            "FR_DUMP_DIR": str(self.dumps), "FR_SHM_DIR": str(self.dir / "shm"), "FR_JOB": "job",
            "FR_TIMEOUT_S": "1", "FR_WARN_S": "1", "FR_RAS": "0", "WORLD_SIZE": str(RANKS),
            "HOST_SHARED": str(self.dir / "shared"), "HOST_NCCL": str(VERSIONS[version]),
            "HOST_CHANNELS": "48" if case.startswith("many_peers") else "2",
            "LD_PRELOAD" if whole else "NCCL_PROFILER_PLUGIN": library,
        }  # fmt: skip
        program = home / ("host_whole" if whole else "host_plugin")
        self.processes = []
        for rank in range(RANKS):
            env = kept | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with (self.dir / f"log.{rank}").open("w") as log:
                self.processes.append(
                    subprocess.Popen([program, case], env=env, stdout=log, stderr=log)
                )

    def newest(self):
        """The newest incident, and whether it has evidence of all ranks."""
        found = {}
        for path in self.dumps.glob("*.fr"):
            name = re.search(r"\.r(\d+)\.(\d+)\.fr$", path.name)
            if name:  # not a file that is being written
                found.setdefault(int(name[2]), set()).add(name[1])
        last = max(found, default=0)
        return last, len(found.get(last, ())) == RANKS

    def verdict(self):
        """frtrace's report of an incident that all ranks have told of."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            incident, whole = self.newest()
            if whole:
                got = subprocess.run(
                    [FRTRACE, "--json", self.dumps], capture_output=True, text=True, timeout=60
                )
                if self.newest()[0] == incident:
                    return json.loads(got.stdout)
            time.sleep(0.03)
        raise AssertionError(f"no evidence of all ranks in {self.dir}: {self.newest()}")

    def kill(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def judge(report, want):
    """'' where it is as wanted, else what is said."""
    verdict = report["verdict"]
    kind, who = want
    links = [(link["from"], link["to"]) for link in report.get("links", [])]
    said = links if kind == "transport" else verdict["ranks"]
    # "undecided" where the version tells less may not turn into a guess
    right = verdict["kind"] == kind and sorted(said) == sorted(who)
    return "" if right else f"{verdict['kind']} {said}, {verdict['summary']}"


def run(home, library, case, versions, whole=False):
    """What is wrong, by version; {} where all is right. The versions side by side."""
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    scratch = Path(tempfile.mkdtemp(prefix="fr-host-", dir=shm))
    jobs = {}
    try:
        for version in versions:
            if expected(case, version, whole) is not None:
                jobs[version] = Job(home, library, scratch, case, version, whole)
        told = {v: judge(job.verdict(), expected(case, v, whole)) for v, job in jobs.items()}
        return {v: said for v, said in told.items() if said}
    finally:
        for job in jobs.values():
            job.kill()
        shutil.rmtree(scratch, ignore_errors=True)


def main(words):
    whole = "--whole" in words
    cases = [w for w in words if w in PLUGIN] or list(PLUGIN)
    versions = [w for w in words if w in VERSIONS] or list(VERSIONS)
    counts = dict.fromkeys(("right", "undecided", "not told", "wrong"), 0)
    with tempfile.TemporaryDirectory() as home:
        build(Path(home))
        library = libfr()
        print(f"{'':20}", *(f"{v:>9}" for v in versions))
        for case in cases:
            wrong = run(Path(home), library, case, versions, whole)
            cells = []
            for version in versions:
                want = expected(case, version, whole)
                cells.append(
                    "wrong" if version in wrong
                    else "not told" if want is None
                    else "undecided" if want[0] == "undecided" else "right"
                )  # fmt: skip
                counts[cells[-1]] += 1
            print(f"{case:20}", *(f"{c:>9}" for c in cells), flush=True)
            for version, said in wrong.items():
                print(f"  {version}: {said}", flush=True)
    print(", ".join(f"{n} {word}" for word, n in counts.items()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
