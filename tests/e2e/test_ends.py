"""Ranks that end: whatever ends them, their evidence is in the dump directory or in their ring."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FRTRACE, QUIET, free_port, frtrace, line_of, wait_until


def test_no_fault_leaves_nothing(launch):
    job = launch("none", 2, torchrun=True, env=QUIET)
    assert job.await_exit() == {"torchrun": 0}, job.log()
    assert job.evidence() == {}
    assert job.rings() == []
    assert "[fr " not in job.log()


def test_no_fault_without_destroy_leaves_nothing(launch, scratch):
    """Many scripts end without destroy_process_group. One rank in eight then dies by SIGABRT in
    torch 2.13 itself, with fr or without ("terminate called without an active exception"), so this
    takes the first of some attempts in which torch does not."""
    script = scratch / "plain.py"
    script.write_text(
        "import fr, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(4))\n"
    )
    for attempt in range(6):
        job = launch(None, 2, script=script, env=QUIET | {"FR_JOB": f"job{attempt}"})
        statuses = job.await_exit()
        if statuses == {0: 0, 1: 0}:
            break
        assert set(statuses.values()) <= {0, -signal.SIGABRT}, job.log()
    assert statuses == {0: 0, 1: 0}, job.log()
    assert job.evidence() == {}
    assert [ring for ring in job.rings() if ring.name.startswith(f"{job.name}.")] == []


def test_sigkill_under_torchrun(launch):
    """torchrun ends the others at once: no timeout ever fires."""
    job = launch("kill", 3, torchrun=True, env={"FR_TIMEOUT_S": "600"})
    job.await_exit()
    job.await_evidence().trace().expect("exited", [2], op="all_reduce", seq=4, at="steps")


def test_sigkill_with_others_left_hanging(launch):
    job = launch("kill_others_hang", 3, env=QUIET)
    assert job.await_exit([2]) == {2: -signal.SIGKILL}
    job.await_evidence().trace().expect("exited", [2], op="all_reduce", seq=4, at="steps")


def test_sigkill_of_all_ranks(launch, scratch):
    """The rings stay and can be read; the next attempt moves them into the dump directory."""
    job = launch("skip", 3, env={"FR_TIMEOUT_S": "600"})
    job.await_live("missing").expect("missing", [2], op="all_reduce", seq=4, at="steps")
    job.kill()
    assert job.evidence() == {}
    # where a user looks first there is nothing, and frtrace says where to look instead
    nothing = frtrace(scratch / "nowhere", FR_SHM_DIR=scratch / "shm")
    hint = f"rings of 1 job are on this machine: frtrace {scratch}/shm/fr-{os.geteuid()}"
    assert nothing.status == 3 and hint in nothing.stderr, nothing
    trace = frtrace(scratch / "shm")
    assert (trace.status, trace.verdict["ranks"]) == (1, [2]), trace
    assert len(job.rings()) == 3

    again = launch("none", 3, attempt=1, env=QUIET)
    assert again.await_exit() == {0: 0, 1: 0, 2: 0}, again.log()
    assert set(job.evidence(attempt=0)) == {0, 1, 2}
    assert job.rings() == []
    trace = job.trace("--attempt", 0)
    assert (trace.status, trace.verdict["ranks"]) == (1, [2]), trace


def test_a_killed_run_and_the_next_of_its_name(launch, scratch):
    """The same job and attempt again: what the killed run left is said to be another run's."""
    job = launch("skip", 3, env={"FR_TIMEOUT_S": "600"})
    job.await_live("missing")
    job.kill()
    job.logs.rename(scratch / "logs-killed")

    again = launch("none", 3, env=QUIET)
    assert again.await_exit() == {0: 0, 1: 0, 2: 0}, again.log()
    assert again.log().count("an earlier run of this job died ") == 1, again.log()
    trace = job.trace().expect("missing", [2], op="all_reduce", seq=4)
    (earlier,) = [f["text"] for f in trace.report["findings"] if f["id"] == "earlier"]
    assert "the rings of ranks 0-2 were found when the job was started again" in earlier
    again.logs.rename(scratch / "logs-again")

    third = launch("skip", 2).await_evidence(incident=2)
    trace = third.trace().expect("missing", [1], op="all_reduce", seq=4)
    assert trace.report["input"]["read"] == trace.report["input"]["expected"] == 2
    said = [f["text"] for f in trace.report["findings"] if f["id"] in ("input", "earlier")]
    assert said == ["3 files of an earlier run of this job are not used: see --incident 1"]


def test_killed_for_want_of_memory(launch, scratch):
    """Both ranks in one control group, as in a container; the kernel ends the larger one."""
    with ControlGroup() as group:
        job = launch("oom", 2, preexec=group.enter, env={"FR_TIMEOUT_S": "600"})
        job.await_live("missing", seconds=0.1)
        group.limit(group.used() + (256 << 20))
        (job.scratch / "go").touch()
        assert job.await_exit([1]) == {1: -signal.SIGKILL}
        trace = job.await_evidence().trace().expect("exited", [1])
        said = str(trace.verdict)
        assert "the kernel's OOM killer has killed 1 process of its control group" in said
        # and what the other rank's control group says
        trace = frtrace(job.dumps, FR_SHM_DIR=scratch / "shm")
        (doctor,) = trace.report["doctor"]
        assert doctor["id"] == "memory" and "has ended 1 process" in doctor["value"], doctor
        text = subprocess.run(
            [FRTRACE, job.dumps],
            env=os.environ | {"FR_SHM_DIR": str(scratch / "shm")},
            capture_output=True,
            text=True,
        ).stdout
        assert "doctor: memory: the kernel's OOM killer has ended 1 process" in text, text


class ControlGroup:
    """A memory control group of the test's own, version 1 or 2."""

    def __enter__(self):
        own = dict(
            line.split(":")[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
        )
        first = "memory" in own
        root = Path("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup")
        self.path = Path(f"{root}{own['memory' if first else '']}") / f"fr-test-{os.getpid()}"
        self.most, self.usage = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if first
            else ("memory.max", "memory.current")
        )
        try:
            self.path.mkdir()
        except OSError as error:
            pytest.skip(f"cannot make a control group: {error}")
        if not (self.path / self.most).exists():
            self.path.rmdir()
            pytest.skip("no control of memory here")
        return self

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def used(self):
        return int((self.path / self.usage).read_text())

    def limit(self, size):
        (self.path / self.most).write_text(str(size))

    def __exit__(self, *_):
        for pid in (self.path / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)

        def removed():
            try:
                self.path.rmdir()
            except OSError:
                return False
            return True

        wait_until("the end of the control group", removed)


def test_dataloader_worker_killed(launch):
    job = launch("loader_killed", 2, env=QUIET)
    job.await_exit([1])
    trace = job.await_evidence().trace().expect("exited", [1])
    said = str(trace.verdict)
    assert "DataLoader worker (pid" in said, trace
    # torch raises that from its handler of SIGCHLD, or finds out later and chains it
    assert "killed by signal: Killed" in said, trace


def test_an_early_exit_is_shown_with_its_line(launch):
    job = launch("early_exit", 3, env=QUIET)
    status = job.await_exit([2])[2]
    # Without destroy_process_group torch itself may abort, see above.
    assert status in (0, -signal.SIGABRT)
    (job.scratch / "go").touch()
    trace = job.await_evidence([0, 1]).trace().expect("exited", [2])
    place = f"by sys.exit at job.py:{line_of('early_exit')} early_exit"
    assert status != 0 or place in str(trace.verdict), trace


def test_os_exit(launch):
    job = launch("os_exit", 3, env=QUIET)
    assert job.await_exit()[2] == 3
    job.await_evidence().trace().expect("exited", [2], op="all_reduce", seq=4, at="steps")


def test_exception_on_one_rank(launch):
    job = launch("exception", 3, env=QUIET)
    # Without destroy_process_group torch itself may abort after the traceback, see above.
    assert job.await_exit()[2] in (1, -signal.SIGABRT)
    trace = job.await_evidence().trace().expect("exited", [2])
    assert "loss is nan" in str(trace.report), trace


def test_exception_under_torchrun(launch):
    job = launch("exception", 3, torchrun=True, env={"FR_TIMEOUT_S": "600"})
    job.await_exit()
    job.await_evidence().trace().expect("exited", [2])


def test_abort_of_a_cpp_thread_under_torchrun(launch):
    job = launch("abort", 3, torchrun=True, env={"FR_TIMEOUT_S": "600"})
    job.await_exit()
    job.await_evidence().trace().expect("exited", [2], op="all_reduce", seq=4, at="steps")


def test_segfault_while_others_wait(launch):
    job = launch("segv", 3, env={"FR_TIMEOUT_S": "600"})
    assert job.await_exit([2])[2] == -signal.SIGSEGV
    trace = job.await_evidence().trace("--stacks").expect("exited", [2])
    (crashed,) = [
        c for c in trace.report["stacks"]["classes"] if c["ranks"] == "2" and c["role"] == "main"
    ]
    assert any(line.endswith(f"job.py:{line_of('segv')} segv") for line in crashed["stack"]), (
        crashed
    )
    assert "SIGSEGV" in str(trace.report)


def test_sigterm_while_all_wait(launch):
    """A scheduler ends the job before any timeout: every rank leaves its evidence first."""
    job = launch("skip", 3, env={"FR_TIMEOUT_S": "600"})
    job.await_live("missing")
    for rank in range(3):
        os.kill(job.pid(rank), signal.SIGTERM)
    assert job.await_exit() == dict.fromkeys(range(3), -signal.SIGTERM)
    trace = job.await_evidence().trace("--stacks")
    assert (trace.status, trace.verdict["ranks"]) == (1, [2]), trace
    # where each was when the signal came, not in the handler
    mains = {c["ranks"]: c for c in trace.report["stacks"]["classes"] if c["role"] == "main"}
    assert any(line.endswith(" idle") for line in mains["2"]["stack"]), mains
    assert mains["2"]["stack"][-1] == "pause (libc.so.6)", mains
    assert mains["2"]["doing"].startswith("interrupted by the signal"), mains
    assert any(line.endswith(" meet") for line in mains["0,1"]["stack"]), mains
    assert f"sent by process {os.getpid()} (" in str(trace.report), trace
    assert [p.suffix for files in job.evidence().values() for p in files] == [".fr"] * 3


def test_sigint_while_all_wait(launch):
    """Ctrl-C reaches every rank; python itself is stuck in a C call and may not see it."""
    job = launch("skip", 2, env={"FR_TIMEOUT_S": "600"})
    job.await_live("missing")
    for rank in range(2):
        os.kill(job.pid(rank), signal.SIGINT)
    job.await_evidence([1]).await_exit([1])


def test_sigterm_to_the_launcher(launch):
    """torchrun hands it on to its ranks."""
    job = launch("skip", 2, torchrun=True, env={"FR_TIMEOUT_S": "600"})
    job.await_live("missing")
    launcher = job.processes["torchrun"].pid
    os.kill(launcher, signal.SIGTERM)
    job.await_exit()
    trace = job.await_evidence().trace("--stacks")
    assert (trace.status, trace.verdict["ranks"]) == (1, [1]), trace
    assert f"sent by process {launcher} (" in str(trace.report), trace
    (blamed,) = [
        c for c in trace.report["stacks"]["classes"] if c["ranks"] == "1" and c["role"] == "main"
    ]
    assert any(line.endswith(" idle") for line in blamed["stack"]), blamed


def test_sigkill_right_after_sigterm(launch):
    """Whatever was reached by then is there and is read."""
    job = launch("skip", 2, env={"FR_TIMEOUT_S": "600"})
    job.await_live("missing")
    for rank in range(2):
        os.kill(job.pid(rank), signal.SIGTERM)
        os.kill(job.pid(rank), signal.SIGKILL)
    job.await_exit()
    trace = frtrace(job.dumps, job.scratch / "shm")
    # A rank that SIGKILL met first ended without a word, in a wait that was no hang yet: it may be
    # blamed for that.
    assert trace.status == 1, trace
    assert [r["rank"] for r in trace.report["ranks"]] == [0, 1], trace


def test_second_attempt_of_torchrun(launch):
    """Each attempt's evidence stays apart; the last one is the default."""
    # With the store that torchrun lends by default, torch 2.13 itself often hangs at a restart.
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    job = launch("restart", 2, torchrun=True, torchrun_args=["--max-restarts=1"], env=env)
    job.await_evidence(attempt=1)
    wait_until("both ranks of attempt 0", lambda: set(job.evidence(attempt=0)) == {0, 1})
    job.trace("--attempt", 0).expect("exited", [0])
    trace = job.trace()
    trace.expect("missing", [1], op="all_reduce", seq=4, at="steps")
    [line] = [f["text"] for f in trace.report["findings"] if f["id"] == "attempt"]
    assert line.startswith("attempt 0 before ended with: rank 0 "), line


PROCESSES = """
import os, sys
import fr, torch, torch.distributed as dist, torch.multiprocessing as mp

def load():
    raise ValueError("bad sample")  # @load

def rank_main(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(2))
    if rank == 1 and len(sys.argv) == 3:
        load()
    dist.all_reduce(torch.ones(2))

if __name__ == "__main__":
    port = int(sys.argv[2])
    if sys.argv[1] == "torch":
        mp.spawn(rank_main, (port,), nprocs=2)
    context = mp.get_context(sys.argv[1])
    ranks = [context.Process(target=rank_main, args=(rank, port)) for rank in range(2)]
    [rank.start() for rank in ranks]
    [rank.join() for rank in ranks]
"""


def run_processes(scratch, *how):
    script = scratch / "processes.py"
    script.write_text(PROCESSES)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "RANK", "WORLD_SIZE"))}
    env |= {"FR_DUMP_DIR": str(scratch / "dumps"), "FR_SHM_DIR": str(scratch)}
    command = [sys.executable, script, how[0], str(free_port()), *how[1:]]
    return subprocess.run(
        command, env=env, cwd=scratch, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("begun", ["torch", "spawn", "fork"])
def test_an_exception_that_multiprocessing_caught(scratch, begun):
    """It ends the process through sys.exit or os._exit, past Python's hook."""
    run_processes(scratch, begun)
    verdict = frtrace(scratch / "dumps").verdict
    assert verdict["kind"] == "exited" and verdict["ranks"] == [1], verdict
    assert verdict["summary"].startswith("rank 1 raised ValueError: bad sample"), verdict
    line = next(n for n, x in enumerate(PROCESSES.splitlines(), 1) if "@load" in x)
    site = verdict["blamed"][0]["site"]
    assert (Path(site["file"]).name, site["line"]) == ("processes.py", line), verdict


@pytest.mark.parametrize("begun", ["spawn", "fork", "forkserver"])
def test_processes_of_multiprocessing_that_end_well_leave_nothing(scratch, begun):
    """A forked one ends through os._exit, past libfr's exit handler: its ring stayed, and was told
    as a process that had been killed."""
    done = run_processes(scratch, begun, "well")
    assert done.returncode == 0, done.stderr
    assert not (scratch / "dumps").exists()
    assert list(scratch.rglob("*.ring")) == []
