"""Faults on real ranks: tries each row of rows.py on four gloo ranks and prints a table.

    run.py                     all rows; exit status 1 if one that must be right is not
    run.py SIGKILL overflow    rows whose name has one of these words
    run.py --jobs 2 -v         two at a time; -v prints what frtrace said of each

Columns: tried; survived: the guilty process ended as it should, or ran on; evidence: ranks with a
file in the dump directory; verdict: kind and ranks; cause: the report says what ended it.
What needs root, mounts or control groups is skipped with a word where that is not to be had.
FR_FAULTS_KEEP=1 leaves the directories of the runs.
"""

import argparse
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANKS = 4
LIMIT_S = 25  # for the evidence and the verdict of one row
START_S = 60  # until the ranks have met
WALL = 0x40000000  # __WALL of waitpid: threads, too
EVIDENCE = re.compile(r"\.r(\d+)\.\d+\.(fr|ring)$")
BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Run:
    """One row: its directory, its ranks, what they left."""

    def __init__(self, row, boom):
        import drive

        self.row, self.boom, self.drive = row, boom, drive
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.scratch = Path(tempfile.mkdtemp(prefix="fr-fault-", dir=parent))
        self.dumps = self.scratch / "dumps"
        for name in ("shm", "tmp", "logs"):
            (self.scratch / name).mkdir()
        self.pids, self.statuses, self.mounts, self.group = {}, {}, [], None
        self.note, self.again, self.traced = "", False, []

    def start(self, attempt=0, fault=None):
        """True in a rank, which has then ended; never in the parent."""
        port = free_port()
        for rank in range(RANKS):
            pid = os.fork()
            if pid == 0:
                self.become(rank, port, attempt)
                import ranks

                row = self.row
                ranks.main(
                    rank, RANKS, self.scratch, self.boom, row.before, fault or row.fault,
                    "meet" if fault else row.others,
                )  # fmt: skip
                sys.exit(0)
            self.pids[rank] = pid
            self.statuses.pop(rank, None)

    def become(self, rank, port, attempt):
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(self.scratch / "logs" / f"{attempt}.{rank}", os.O_WRONLY | os.O_CREAT, 0o644)
        null = os.open("/dev/null", os.O_RDONLY)
        for fd, to in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, to)
        os.closerange(3, 256)
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
        for name in list(os.environ):
            if name.startswith(("FR_", "TORCH_", "SLURM_")) and name != "FR_CACHE_DIR":
                del os.environ[name]
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
            "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
            "TORCHELASTIC_RESTART_COUNT": str(attempt), "OMP_NUM_THREADS": "1",
            "FR_DUMP_DIR": str(self.dumps), "FR_SHM_DIR": str(self.scratch / "shm"),
            "FR_JOB": "job", "FR_TIMEOUT_S": "2", "FR_WARN_S": "1",
            "TMPDIR": str(self.scratch / "tmp"), "SHIM_CLOCK": str(self.scratch / "clock"),
            "SHIM_HANG": str(self.scratch / "hang"),
        } | self.row.env  # fmt: skip
        os.chdir(self.scratch)

    def ended(self, rank):
        if rank not in self.statuses:
            pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
            if pid == 0 or os.WIFSTOPPED(status):
                return False
            self.statuses[rank] = os.waitstatus_to_exitcode(status)
        return True

    def await_ends(self, alive_ok=False):
        try:
            self.drive.until(
                "the end of all ranks",
                lambda: [self.ended(r) for r in range(RANKS)] == [True] * RANKS,
                15,
            )
        except self.drive.Wrong:
            if not alive_ok:
                raise

    def evidence(self):
        found = set()
        for path in self.dumps.glob("*") if self.dumps.is_dir() else ():
            name = EVIDENCE.search(path.name)
            if name and path.stat().st_size > 0:
                found.add(int(name[1]))
        return len(found)

    def await_evidence(self, n):
        self.drive.until(f"evidence of {n}", lambda: self.evidence() >= n)

    def report(self, where=None):
        # the fallback directory has a name of its own
        paths = [self.scratch / w for w in where or self.row.read]
        paths = [
            p for path in paths for p in (path.glob("fr-dumps-*") if path.name == "tmp" else [path])
        ]
        options = ["--attempt", "0"] if self.again else []
        got = subprocess.run(
            [BIN / "frtrace", "--json", *options, *paths], capture_output=True, text=True,
            timeout=60, env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"},
        )  # fmt: skip
        try:
            report = json.loads(got.stdout)
        except json.JSONDecodeError:
            report = {}
        return report[0] if isinstance(report, list) and report else report

    def verdict(self, where=None):
        return self.report(where).get("verdict", {"kind": "none", "ranks": []})

    def judge(self):
        """(verdict right, cause named), as of now."""
        row = self.row
        report = self.report()
        verdict = report.get("verdict", {"kind": "none", "ranks": []})
        kinds = (row.kind,) if isinstance(row.kind, str) else row.kind
        right = verdict["kind"] in kinds and tuple(sorted(verdict["ranks"])) == row.ranks
        named = re.search(row.cause, json.dumps(report)) is not None
        self.said = f"{verdict['kind']} {verdict['ranks']}: {verdict.get('summary', '')}"
        return right or not row.kind, named or not row.cause

    def finish(self):
        for rank, pid in self.pids.items():
            if not self.ended(rank):
                os.kill(pid, signal.SIGKILL)
        for thread in self.traced:  # a process has ended when its tracer knows of all its threads
            while thread not in self.pids.values() and not os.WIFSIGNALED(
                os.waitpid(thread, WALL)[1]
            ):
                pass
        for rank in self.pids:
            while not self.ended(rank):
                time.sleep(0.01)


def attempt(row, boom):
    """Result of one row; does not return in a rank."""
    import drive

    run = Run(row, boom)
    result = {"name": row.name, "skip": "", "survived": True, "evidence": 0, "right": False,
              "named": False, "note": "", "took": 0.0, "log": ""}  # fmt: skip
    run.said = ""
    try:
        row.prepare(run)
    except drive.Skip as why:
        drive.clean(run)
        return result | {"skip": str(why)}
    run.start()
    try:
        stepped = run.scratch / f"stepped.{drive.GUILTY}"
        drive.until("the first steps", stepped.exists, START_S)
        begun = time.monotonic()
        row.drive(run)
        done = False
        while not done and time.monotonic() < begun + LIMIT_S:
            done = run.evidence() >= row.evidence and run.judge() == (True, True)
            time.sleep(0 if done else 0.1)
        result["took"] = time.monotonic() - begun
        if row.ends is not None:
            drive.until("the guilty one's end", lambda: run.ended(drive.GUILTY), 10)
            result["survived"] = run.statuses[drive.GUILTY] == row.ends
            run.note += "" if result["survived"] else f"status {run.statuses[drive.GUILTY]}"
    except drive.Skip as why:
        result["skip"] = str(why)
    except drive.Wrong as why:
        run.note += str(why)
        result["survived"] = False
    for task_stopped in run.pids.values():
        try:
            os.kill(task_stopped, signal.SIGKILL)
        except ProcessLookupError:
            pass
    run.finish()
    result["right"], result["named"] = run.judge()
    result["evidence"] = run.evidence()
    result["note"] = run.note
    result["said"] = run.said
    logs = sorted((run.scratch / "logs").iterdir())
    result["log"] = "\n".join(
        f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in logs
    )
    drive.clean(run)
    return result


def compiled(out):
    """boom.so and shim.so."""
    for source, flags in (("boom.cpp", ["-std=c++20", "-pthread"]), ("shim.c", [])):
        compiler = os.environ.get("CXX" if source.endswith("pp") else "CC", "")
        compiler = compiler or ("c++" if source.endswith("pp") else "cc")
        to = out / (Path(source).stem + ".so")
        subprocess.run(
            [compiler, "-O1", "-w", "-fPIC", "-shared", "-o", to, HERE / source, *flags], check=True
        )


def work(out):
    """Names of rows on stdin, results on stdout; ranks are forked from here, torch loads once."""
    channel = os.fdopen(os.dup(1), "w")
    sys.path.insert(0, str(HERE))
    boom = ctypes.CDLL(str(out / "boom.so"))
    import ranks  # noqa: F401 - loads torch and fr
    import rows

    by_name = {row.name: row for row in rows.ROWS}
    for line in sys.stdin:
        result = attempt(by_name[json.loads(line)], boom)
        channel.write(json.dumps(result) + "\n")
        channel.flush()


class Table:
    def __init__(self, rows, verbose):
        self.rows, self.verbose = {row.name: row for row in rows}, verbose
        self.lock = threading.Lock()
        self.results, self.bad = [], []
        print(f"{'fault':52} tried surv. evid. verdict cause     s")

    def add(self, r):
        row = self.rows[r["name"]]
        wanted = row.evidence
        fine = r["skip"] or (
            r["survived"] and r["evidence"] >= wanted and r["right"] and r["named"]
        )
        with self.lock:
            self.results.append(r)
            if r["skip"]:
                print(f"{r['name']:52} skipped: {r['skip']}")
                return
            word = {True: "yes", False: "NO"}
            print(
                f"{r['name']:52}     1 {word[r['survived']]:>5} {r['evidence']:>3}/4 "
                f"{word[r['right']] if row.kind else '-':>7} "
                f"{word[r['named']] if row.cause else '-':>5} {r['took']:5.1f}"
                f"{'  ' + r['note'] if r['note'] else ''}",
                flush=True,
            )
            if not fine or self.verbose:
                print(f"    {r.get('said', '')}")
            if not fine and row.may_fail:
                print(f"    does not count: {row.may_fail}")
            elif not fine:
                self.bad.append(r["name"])
                print("    " + r["log"].replace("\n", "\n    "))

    def sums(self):
        ran = [r for r in self.results if not r["skip"]]
        judged = [r for r in ran if self.rows[r["name"]].kind]
        caused = [r for r in ran if self.rows[r["name"]].cause]
        print(
            f"{len(ran)} tried, {sum(r['survived'] for r in ran)} survived, "
            f"evidence {sum(r['evidence'] for r in ran)} of {4 * len(ran)}, "
            f"verdict right {sum(r['right'] for r in judged)} of {len(judged)}, "
            f"cause named {sum(r['named'] for r in caused)} of {len(caused)}, "
            f"{len(self.results) - len(ran)} skipped, {len(self.bad)} wrong"
        )
        for name in self.bad:
            print(f"wrong: {name}")


def feed(queue, lock, table, out, shim):
    """One worker until the queue of rows is empty."""
    env = dict(os.environ)
    if shim:
        env["LD_PRELOAD"] = str(out / "shim.so")
    worker = None
    while True:
        with lock:
            mine = [row for row in queue if row.shim == shim]
            if not mine:
                break
            queue.remove(mine[0])
        if worker is None or worker.poll() is not None:
            worker = subprocess.Popen(
                [sys.executable, __file__, "--worker", out], env=env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        worker.stdin.write(json.dumps(mine[0].name) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        lost = {"name": mine[0].name, "skip": "", "survived": False, "evidence": 0, "right": False,
                "named": False, "took": 0, "note": "the worker has ended", "log": ""}  # fmt: skip
        table.add(json.loads(line) if line else lost)
    if worker is not None:
        worker.stdin.close()
        worker.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("-v", action="store_true", dest="verbose")
    parser.add_argument("--worker", type=Path)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker)
    sys.path.insert(0, str(HERE))
    import rows

    chosen = [
        row for row in rows.ROWS if not options.words or any(w in row.name for w in options.words)
    ]
    with tempfile.TemporaryDirectory(prefix="fr-faults-") as out:
        compiled(Path(out))
        table = Table(chosen, options.verbose)
        queue, lock = list(chosen), threading.Lock()

        def one():
            for shim in (False, True):
                feed(queue, lock, table, Path(out), shim)

        threads = [threading.Thread(target=one) for _ in range(options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table.sums()
    return 1 if table.bad else 0


if __name__ == "__main__":
    sys.exit(main())
