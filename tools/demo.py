"""The demo: four real ranks train a small model, one of them goes wrong, frtrace says which.

`make demo FAULT=...` sets everything up and calls this.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SCRIPT = "examples/01_ddp_hang.py"
RANKS = 4
WARN_S, TIMEOUT_S = 2, 5
WIDTH = 150
GIVE_UP_S = 90  # torch may take long to import on a busy machine
FAULTS = {
    "skip": "at step 20 rank 2 takes another branch and skips an all_reduce",
    "sleep": "at step 20 rank 2 falls asleep while it loads a batch",
    "size": "at step 20 rank 2 reduces a tensor of another size",
    "dtype": "at step 20 rank 2 reduces doubles where the others reduce floats",
    "op": "at step 20 rank 2 calls broadcast where the others call all_reduce",
    "kill": "at step 20 rank 2 gets SIGKILL, as from the out-of-memory killer",
    "exit": "at step 20 rank 2 ends with os._exit(3)",
    "exception": "at step 20 rank 2 raises an exception",
    "none": "nothing goes wrong",
}


class Job:
    """torchrun and its ranks. What they print goes to `log`; the best of it is shown."""

    def __init__(self, fault: str, dumps: Path, shm: Path, log: Path):
        environment = dict(
            os.environ,
            FR_JOB=f"demo-{fault}",
            FR_DUMP_DIR=str(dumps),
            FR_SHM_DIR=str(shm),
            FR_WARN_S=str(WARN_S),
            FR_TIMEOUT_S=str(TIMEOUT_S),
            FR_VERDICT="0",  # the demo asks frtrace itself
        )
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", str(RANKS), SCRIPT, "--fault", fault]
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            torchrun,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.reader = threading.Thread(target=self._show, args=(log,), daemon=True)
        self.reader.start()

    def say(self, text: str) -> None:
        text = text.replace(f"{ROOT}/", "")
        if len(text) > WIDTH:
            text = text[: WIDTH - 3] + "..."
        print(f"{time.monotonic() - self.start:5.1f} s  {text}", flush=True)

    def _show(self, log: Path) -> None:
        with log.open("w") as out:
            for line in self.process.stdout:
                out.write(line)
                out.flush()
                if line.startswith(("step ", "[fr ")):
                    self.say(line.rstrip())

    def stop(self) -> None:
        """Ends torchrun and its ranks at once, frozen first, so that none sees another one die."""
        if self.process.poll() is None:
            family = [self.process.pid]
            for pid in family:
                os.kill(pid, signal.SIGSTOP)
                family += children(pid)
            for pid in family:
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(timeout=5)


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def ranks_with_evidence(dumps: Path) -> set[str]:
    """Names are <job>.a<attempt>.r<rank>.<incident>.fr, or .ring after a signal."""
    return {
        next(part for part in path.name.split(".")[1:] if part.startswith("r"))
        for path in dumps.glob("*.a*.r*.*")
        if path.suffix in (".fr", ".ring")
    }


def wait_for_evidence(job: Job, dumps: Path) -> None:
    """Until every rank left evidence, or the job ended."""
    seen = 0
    while time.monotonic() - job.start < GIVE_UP_S:
        ended = job.process.poll() is not None
        ranks = ranks_with_evidence(dumps)
        if len(ranks) > seen:
            seen = len(ranks)
            job.say(f"evidence of {seen} of {RANKS} ranks is on disk")
        if ended:
            job.reader.join(timeout=5)
            job.say(f"the job has ended, exit status {job.process.returncode}")
            return
        if seen == RANKS:
            return
        time.sleep(0.05)
    job.say(f"gave up waiting after {GIVE_UP_S} s")


def main() -> int:
    fault = sys.argv[1] if len(sys.argv) > 1 else "skip"
    if fault not in FAULTS:
        print(f"demo: no fault {fault!r}; there are: {' '.join(FAULTS)}", file=sys.stderr)
        return 2
    dumps = Path("fr-dumps") / f"demo-{fault}"
    log = Path("fr-dumps") / f"demo-{fault}.log"
    os.chdir(ROOT)
    shutil.rmtree(dumps, ignore_errors=True)
    dumps.mkdir(parents=True)
    print(f"{RANKS} ranks train with DDP on gloo: torchrun {SCRIPT} --fault {fault}")
    print(f"FR_WARN_S={WARN_S} FR_TIMEOUT_S={TIMEOUT_S}; {FAULTS[fault]}\n")
    with tempfile.TemporaryDirectory(prefix="fr-demo-", dir=shm_parent()) as shm:
        job = Job(fault, dumps.absolute(), Path(shm), log)
        try:
            wait_for_evidence(job, dumps)
            status = verdict(dumps) if ranks_with_evidence(dumps) else no_evidence(job)
        finally:
            job.stop()
    print(f"\nAll that the job printed: {log}")
    return 0 if status == (0 if fault == "none" else 1) else 1


def verdict(dumps: Path) -> int:
    command = ["frtrace", str(dumps)]
    print(f"\n$ {shlex.join(command)}", flush=True)
    status = subprocess.run([str(BIN / command[0]), *command[1:]]).returncode
    print(f"exit status: {status}")
    return status


def no_evidence(job: Job) -> int:
    if job.process.returncode == 0:
        print("\nAn orderly end: no dump was written, the rings are removed.")
    else:
        print("\nThere is no evidence; the log says why the job did not come that far.")
    return job.process.returncode or 0


def shm_parent() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
