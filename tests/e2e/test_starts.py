"""Beginning and end of jobs: jobs that no launcher names, ranks that never start or never exit."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import HERE, QUIET, free_port, frtrace, wait_until

LAUNCHERS = ("FR_", "TORCH", "SLURM_", "MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "OMPI_", "PMI")


def verdict_on(job, ranks):
    """frtrace's answer, as soon as it names these ranks."""

    def verdict():
        trace = job.trace() if job.dumps.exists() else None
        return trace if trace and trace.report and trace.verdict["ranks"] == ranks else None

    return wait_until("the verdict", verdict)


def unnamed(scratch, port, fault, **options):
    """The ranks of unnamed_job.py, in a session of their own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    env |= {"FR_SHM_DIR": str(scratch / "shm"), "OMP_NUM_THREADS": "1"} | options
    if "FR_CACHE_DIR" in os.environ:
        env["FR_CACHE_DIR"] = os.environ["FR_CACHE_DIR"]
    command = [sys.executable, HERE / "unnamed_job.py", str(port), scratch, fault]
    with (scratch / f"log.{port}").open("w") as log:
        return subprocess.Popen(
            command, env=env, cwd=scratch, stdout=log, stderr=log, start_new_session=True
        )


def test_two_jobs_at_once_that_no_launcher_names_share_nothing(scratch):
    hung, well = free_port(), free_port()
    fast = {"FR_TIMEOUT_S": "2", "FR_WARN_S": "1"}
    jobs = [unnamed(scratch, hung, "skip", **fast), unnamed(scratch, well, "none", **QUIET)]
    try:
        up = [scratch / f"up.{port}.{rank}" for port in (hung, well) for rank in (0, 1)]
        wait_until("all ranks", lambda: all(path.exists() for path in up))
        name, other = (f"127-0-0-1-{port}-unnamed_job" for port in (hung, well))
        control = [path.name for path in (scratch / "shm").rglob("*.ctl")]
        assert sorted(c.split(".")[0] for c in control) == sorted([name, other])
        (scratch / "go").touch()
        dumps = scratch / "fr-dumps" / name
        wait_until(
            "the verdict",
            lambda: dumps.exists() and frtrace(dumps).report.get("verdict", {}).get("ranks") == [1],
        )
        trace = frtrace(dumps).expect("missing", [1], op="all_reduce", seq=2)
        assert trace.report["input"]["read"] == trace.report["input"]["expected"] == 2, trace
        (scratch / "end").touch()
        assert jobs[1].wait(timeout=90) == 0, (scratch / f"log.{well}").read_text()
        assert not (scratch / "fr-dumps" / other).exists()  # no incident of the hung job's
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait(timeout=10)


@pytest.mark.parametrize("absent", [3, 0])
def test_a_rank_that_never_started_is_named(launch, absent):
    script = HERE / "plain_job.py"
    job = launch("", 4, script=script, absent=[absent], env={"FR_TIMEOUT_S": "2"})
    others = sorted({0, 1, 2, 3} - {absent})

    # ranks that come late, by slow imports, are missing in the first incidents
    trace = verdict_on(job, [absent]).expect("missing", [absent], op="init_process_group")
    assert trace.verdict["blamed"][0]["why"] == "never_started", trace
    assert [w["ranks"] for w in trace.verdict["waiting"]] == [others], trace
    text = f"rank {absent} has not entered init_process_group (not started, or cannot reach the"
    assert trace.verdict["summary"].startswith(f"{text} store at 127.0.0.1:"), trace
    for process in job.processes.values():  # as a scheduler does
        process.kill()
        process.wait(timeout=30)
    after = job.trace().expect("missing", [absent], op="init_process_group")
    assert after.verdict["summary"].startswith(text), after
    frtrace(job.scratch / "shm", job.dumps).expect("missing", [absent])  # the rings that are left


OTHER_STORE = """
import os, signal
if os.environ["RANK"] in os.environ["LOST"]:
    os.environ |= {"MASTER_ADDR": os.environ["ADDRESS"], "MASTER_PORT": "9"}
import fr, torch.distributed as dist
dist.init_process_group("gloo")
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "no-such-host.invalid"])
def test_a_rank_that_does_not_reach_the_store_is_named(launch, scratch, address):
    script = scratch / "other_store.py"
    script.write_text(OTHER_STORE)
    env = {"FR_TIMEOUT_S": "2", "FR_JOB": "one", "LOST": "2", "ADDRESS": address}
    job = launch("", 4, script=script, env=env)

    trace = verdict_on(job, [2]).expect("missing", [2], op="init_process_group")
    summary = f"rank 2 does not reach the ranks' store at {address}:9; rank"
    assert trace.verdict["summary"].startswith(summary), trace
    looks_up, failed = "its name is being looked up", "its last try failed: nobody listens there"
    assert failed in str(trace) or (address != "127.0.0.1" and looks_up in str(trace))
    assert "connected to the store at " in str(trace)


def test_a_store_that_no_rank_reaches(launch, scratch):
    script = scratch / "other_store.py"
    script.write_text(OTHER_STORE)
    env = {"FR_TIMEOUT_S": "2", "FR_JOB": "one", "LOST": "0123", "ADDRESS": "192.0.2.1"}
    job = launch("", 4, script=script, env=env)

    def verdict():
        trace = job.trace() if job.dumps.exists() else None
        return trace if trace and "ranks 0-3 do not reach" in str(trace) else None

    trace = wait_until("the verdict", verdict)
    assert "at 192.0.2.1:9; rank 0 (host " in trace.verdict["summary"], trace


BEFORE_INIT = """
import os, time
while os.environ["RANK"] == "1" and not os.path.exists("go"):
    time.sleep(0.1)
import fr, torch.distributed as dist
dist.init_process_group("gloo")
"""


def test_a_process_before_its_import_of_fr_is_found(launch, scratch):
    """It has no ring and no dump; this machine's /proc has its environment."""
    script = scratch / "before_init.py"
    script.write_text(BEFORE_INIT)
    job = launch("", 2, script=script, env={"FR_TIMEOUT_S": "2"})

    trace = verdict_on(job, [1]).expect("missing", [1], op="init_process_group")
    [line] = [e for e in trace.verdict["blamed"][0]["evidence"] if e.startswith("process ")]
    assert line.endswith(f"py-spy dump --pid {job.processes[1].pid} shows where it is"), trace


def test_a_rank_that_fails_before_its_first_group_is_named(launch):
    job = launch("", 3, script=HERE / "early_job.py", env={"FR_TIMEOUT_S": "3"})

    def verdict():
        trace = job.trace() if job.dumps.exists() else None
        return trace if trace and trace.report and trace.verdict["kind"] == "exited" else None

    trace = wait_until("the verdict", verdict).expect("exited", [2])
    assert trace.verdict["summary"].startswith("rank 2 raised KeyError: 'dataset_root'"), trace
    assert trace.verdict["blamed"][0]["site"]["function"] == "read_config", trace
    assert "issued no operation at all" in trace.verdict["blamed"][0]["evidence"], trace


def test_ranks_that_all_fail_before_any_records_leave_nothing(launch):
    job = launch("", 3, script=HERE / "early_job.py", env={"FR_TEST_ALL": "1"})
    assert set(job.await_exit().values()) == {1}, job.log()
    assert not job.dumps.exists()
    assert "[fr" not in job.log()


def test_a_process_that_does_not_exit_is_named(launch):
    job = launch("", 3, script=HERE / "exit_job.py", env={"FR_TIMEOUT_S": "2", "FR_WARN_S": "1"})
    assert set(job.await_exit([0, 1]).values()) == {0}, job.log()

    trace = verdict_on(job, [2]).expect("missing", [2], op="interpreter_exit")
    assert trace.verdict["summary"].startswith("rank 2 does not exit: "), trace
    assert "upload" in str(frtrace("--stacks", job.dumps).report), trace
    (job.scratch / "go").touch()
    assert job.await_exit([2]) == {2: 0}, job.log()
    assert job.trace().verdict["kind"] == "ok", job.trace()  # it went on


@pytest.mark.parametrize("how", ["atexit", "queue", "logging", "del", "alive"])
def test_an_exit_hook_that_does_not_return_is_named(launch, how):
    env = {"FR_TIMEOUT_S": "2", "FR_WARN_S": "1", "FR_TEST_EXIT": how}
    job = launch("", 3, script=HERE / "exit_job.py", env=env, fork=False)
    assert set(job.await_exit([0, 1]).values()) == {0}, job.log()

    trace = verdict_on(job, [2]).expect("missing", [2], op="interpreter_exit")
    assert trace.verdict["summary"].endswith("is over, and an exit hook does not return"), trace
    assert trace.verdict["confidence"] == "certain", trace
    assert "upload" in str(trace), trace
    (job.scratch / "go").touch()
    assert job.await_exit([2]) == {2: 0}, job.log()
    assert job.trace().verdict["kind"] == "ok", job.trace()


def test_an_exit_hook_that_ctrl_c_ended_is_no_end_of_its_own(launch):
    env = {"FR_TIMEOUT_S": "2", "FR_WARN_S": "1", "FR_TEST_EXIT": "atexit"}
    job = launch("", 3, script=HERE / "exit_job.py", env=env, fork=False)
    assert set(job.await_exit([0, 1]).values()) == {0}, job.log()
    wait_until("the dump", lambda: "dump 1" in job.log())
    os.kill(job.trace().verdict["blamed"][0]["pid"], signal.SIGINT)
    job.await_exit([2])
    trace = job.trace().expect("missing", [2], op="interpreter_exit")
    assert "ended by SIGINT" in str(trace.report), trace


def test_an_abort_at_exit_is_told_for_what_it_is(launch):
    env = {"FR_TEST_EXIT": "thread_runs"}
    job = launch("", 3, script=HERE / "exit_job.py", env=env, fork=False)
    if job.await_exit([2]) == {2: 1}:
        pytest.skip("the thread of rank 2 was not in C++ code at that moment")
    trace = wait_until("the verdict", lambda: (t := job.trace()).report and t).expect("exited", [2])
    assert "SIGABRT, at exit: a thread still ran when Python had ended" in trace.verdict["summary"]
    site = trace.verdict["blamed"][0]["site"]
    line = (HERE / "exit_job.py").read_text().split("\n")[site["line"] - 1]
    assert line.endswith("# @sys_exit"), trace
