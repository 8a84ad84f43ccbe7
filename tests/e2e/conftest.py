"""Launches real ranks; waits for events (files, ends), never for mere time; leaves nothing."""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch_fork

HERE = Path(__file__).parent
SCRIPT = HERE / "job.py"
FRTRACE = Path(sys.executable).parent / "frtrace"
EVIDENCE = re.compile(r"\.r(?P<rank>\d+)(?:\.p\d+)?\.(?P<incident>\d+)\.(fr|ring)$")
PATIENCE_S = 90  # for one event; importing torch on a busy machine is the slowest of them


LONG = re.compile(
    r"torch_and_nccl|rows_of_the_fault|test_demo|two_jobs_at_once|torchrun|groups_than_a"
)


def pytest_collection_modifyitems(items):
    """Those that take long come first, so that no test process is left with one at the end."""
    items.sort(key=lambda item: not LONG.search(item.name))


def wait_until(what, condition, timeout=PATIENCE_S):
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited {timeout} s for: {what}"
        time.sleep(0.03)


def line_of(mark):
    """Line of job.py that carries `# @mark`."""
    lines = SCRIPT.read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# @{mark}")]
    return line


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
        except OSError:
            pass
    return found


@dataclass
class Trace:
    """What frtrace said."""

    status: int
    report: dict
    stderr: str

    @property
    def verdict(self):
        return self.report["verdict"]

    def expect(self, kind, ranks, *, op=None, seq=None, desc=None, waiting=None, at=None, now=None):
        """Kind and ranks of the verdict; op, seq, group description of the blamed, the line
        `at`=mark of their last (or wrong) operation, `now`=mark where they are; `waiting`={mark:
        ranks}."""
        said = json.dumps(self.verdict, indent=1)
        assert self.verdict["kind"] == kind, said
        assert sorted(self.verdict["ranks"]) == sorted(ranks), said
        assert self.status == (0 if kind == "ok" else 4 if kind == "undecided" else 1), said
        assert self.verdict["summary"], said
        blamed = self.verdict["blamed"]
        assert sorted(b["rank"] for b in blamed) == sorted(ranks), said
        for entry in blamed:
            for key, value in (("op", op), ("seq", seq), ("desc", desc)):
                assert value is None or entry[key] == value, f"{key}: {said}"
            if at:
                place = "last_site" if kind in ("missing", "exited") else "site"
                assert_site(entry[place], at, said)
            if now:
                assert_site(entry["site"], now, said)
        for mark, who in (waiting or {}).items():
            sites = [w for w in self.verdict["waiting"] if sorted(w["ranks"]) == sorted(who)]
            assert sites, said
            assert_site(sites[0]["site"], mark, said)
        return self


def assert_site(site, mark, said):
    assert (Path(site["file"]).name, site["line"]) == ("job.py", line_of(mark)), said
    assert site["function"], said


def frtrace(*args, **env):
    got = subprocess.run(
        [FRTRACE, "--json", *map(str, args)],
        env=os.environ | {k: str(v) for k, v in env.items()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    try:
        report = json.loads(got.stdout)
    except json.JSONDecodeError:
        report = {}
    return Trace(got.returncode, report, got.stderr)


class Job:
    """Ranks of one job: under torchrun, or one process each started here: forked from one that has
    imported torch, where that is the same to them."""

    def __init__(self, scratch, fault, ranks, *, torchrun=False, attempt=0, env=None, rank_env=None,
                 script=SCRIPT, torchrun_args=(), preexec=None, absent=(), fork=True):  # fmt: skip
        self.ranks = ranks
        self.fork = fork and preexec is None and not torchrun
        self.preexec = preexec
        self.scratch = scratch
        self.name = (env or {}).get("FR_JOB", "job")
        self.dumps = scratch / "dumps"
        self.logs = scratch / f"logs-{self.name}-{attempt}"
        self.logs.mkdir(parents=True)
        self.processes = {}
        base = {
            k: v for k, v in os.environ.items() if not k.startswith(("FR_", "TORCH_", "SLURM_"))
        }
        base |= {
            "E2E_SCRATCH": str(scratch),
            "FR_CACHE_DIR": os.environ.get("FR_CACHE_DIR", ""),
            "FR_DUMP_DIR": str(self.dumps),
            "FR_JOB": "job",
            "FR_SHM_DIR": str(scratch / "shm"),
            "FR_TIMEOUT_S": "2",
            # test_verdict.py has it; elsewhere it would only take time
            "FR_VERDICT": os.environ.get("FR_VERDICT", "0"),
            "FR_WARN_S": "1",
            "OMP_NUM_THREADS": "1",
        } | (env or {})
        base = {k: v for k, v in base.items() if v != ""}
        command = [sys.executable, str(script), *([fault] if fault else [])]
        if torchrun:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            launcher += ["--nproc-per-node", str(ranks), *torchrun_args]
            self._start("torchrun", launcher + command[1:], base)
        else:
            rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            for rank in set(range(ranks)) - set(absent):
                own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
                own |= {"LOCAL_WORLD_SIZE": ranks, "TORCHELASTIC_RESTART_COUNT": attempt}
                own |= (rank_env or {}).get(rank, {})
                own = {k: str(v) for k, v in own.items()}
                self._start(rank, command, base | rendezvous | own)

    def _start(self, key, command, env):
        forked = self.fork and torch_fork.fits(command, env)
        start, how = subprocess.Popen, {"preexec_fn": self._before_exec}
        if forked:
            start, how = torch_fork.Forked, {}
        with (self.logs / str(key)).open("w") as log:
            self.processes[key] = start(
                command,
                env=env,
                cwd=self.scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **how,
            )

    def _before_exec(self):
        # a shell that started the tests in the background left SIGINT ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self.preexec:
            self.preexec()

    def pid(self, rank, attempt=0):
        return int((self.scratch / f"pid.{self.name}.{attempt}.{rank}").read_text())

    def log(self):
        return "\n".join(f"--- {p.name}\n{p.read_text()}" for p in sorted(self.logs.iterdir()))

    def evidence(self, attempt=0, incident=None, where=None):
        """Files in the dump directory, by rank; an incident or any."""
        found = {}
        for path in sorted((where or self.dumps).glob(f"{self.name}.a{attempt}.r*.*")):
            name = EVIDENCE.search(path.name)
            if name and incident in (None, int(name["incident"])):
                found.setdefault(int(name["rank"]), []).append(path)
        return found

    def incidents(self, attempt=0):
        files = [p for paths in self.evidence(attempt).values() for p in paths]
        return sorted({int(EVIDENCE.search(p.name)["incident"]) for p in files})

    def await_evidence(self, ranks=None, **kwargs):
        """Until every rank (or those named) has evidence in the dump directory."""
        wanted = set(range(self.ranks) if ranks is None else ranks)

        def there():
            return wanted <= set(self.evidence(**kwargs)) and not (not kwargs and self.starts())

        try:
            wait_until(f"evidence of {wanted}", there)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; there is {self.evidence(**kwargs)}\n{self.log()}"
            ) from None
        return self

    def starts(self):
        """Whether the last incident is one of ranks that met late: a busy machine's, no fault's."""
        verdict = self.trace("--job", self.name).report.get("verdict", {})
        return any(w["op"] == "init_process_group" for w in verdict.get("waiting", ()))

    def await_exit(self, keys=None):
        """Exit status of each process started here (or of those named)."""
        keys = list(self.processes) if keys is None else keys
        try:
            wait_until(
                f"end of {keys}", lambda: all(self.processes[k].poll() is not None for k in keys)
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None
        return {k: self.processes[k].returncode for k in keys}

    def await_live(self, kind, seconds=2.0):
        """Until frtrace reads this verdict from the live rings, about waits of that age."""

        def read():
            trace = frtrace(self.scratch / "shm")
            if not trace.report or trace.verdict["kind"] != kind:
                return None
            waits = [w["seconds"] for w in trace.verdict["waiting"]]
            return trace if waits and max(waits) >= seconds else None

        try:
            return wait_until(f"live verdict {kind}", read)
        except AssertionError as error:
            last = frtrace(self.scratch / "shm")
            raise AssertionError(f"{error}; last {last}\n{self.log()}") from None

    def await_verdict(self, kind, seq, desc=None):
        """Until the evidence says so. Where ranks do not wait for each other's imports of torch,
        one that comes late may be the first hang that is seen; dumps of those who wait in the
        group `desc` may be still to come."""

        def read():
            trace = self.trace()
            if trace.report and trace.verdict["kind"] == kind:
                blamed = trace.verdict["blamed"]
                known = seq in [b["seq"] for b in blamed]
                return trace if known and desc in (None, blamed[0].get("desc")) else None

        try:
            return wait_until(f"verdict {kind}", read)
        except AssertionError as error:
            raise AssertionError(f"{error}; last {self.trace()}\n{self.log()}") from None

    def rings(self):
        return sorted((self.scratch / "shm").rglob("*.ring"))

    def trace(self, *args):
        return frtrace(*args, self.dumps)

    def kill(self):
        """SIGKILL for all, frozen first, so that none sees another one die."""
        family = [p.pid for p in self.processes.values() if p.poll() is None]
        for pid in family[:]:
            os.kill(pid, signal.SIGSTOP)
            family += descendants(pid)
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            for pid in family:
                try:
                    os.kill(pid, sig)
                except ProcessLookupError:
                    pass
        for process in self.processes.values():
            process.wait(timeout=10)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """made_once(name, make) -> a directory of that name, in which make(directory) has been called,
    by one of the test processes of this run."""

    def get(name, make, part=""):
        shared = tmp_path_factory.getbasetemp()
        if "PYTEST_XDIST_WORKER" in os.environ:
            shared = shared.parent
        home = shared / name
        home.mkdir(exist_ok=True)
        made = home / f"{part}.made"
        with (home / f"{part}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                make(home)
                made.touch()
        return home

    return get


QUIET = {"FR_TIMEOUT_S": "600", "FR_WARN_S": "600"}  # a busy machine is no hang


@pytest.fixture
def scratch(tmp_path):
    """A directory of this test's own on tmpfs: rings, dumps, logs."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    path = Path(tempfile.mkdtemp(prefix="fr-e2e-", dir=parent))
    (path / "shm").mkdir()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def launch(scratch):
    """launch(fault, ranks, ...) starts a Job; all are killed when the test ends."""
    jobs = []

    def start(fault, ranks, **kwargs):
        jobs.append(Job(scratch, fault, ranks, **kwargs))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
