"""What is done to a hung job must not outweigh the evidence of the hang, and a hang that passed is
over: the verdict before and after."""

import os
import signal
import time

import pytest
from conftest import HERE, frtrace, line_of, wait_until

FAST = {"FR_TIMEOUT_S": "2", "FR_WARN_S": "1"}


def all_processes(job):
    return [p for p in job.processes.values() if p.poll() is None]


def signal_all(job, sig):
    for process in all_processes(job):
        process.send_signal(sig)


def ctrl_c(job):
    signal_all(job, signal.SIGINT)
    try:
        wait_until("the end", lambda: not all_processes(job), timeout=5)
    except AssertionError:  # Python hears it when the call in C returns
        job.kill()


def term(job):
    signal_all(job, signal.SIGTERM)


def term_twice(job):
    signal_all(job, signal.SIGTERM)
    signal_all(job, signal.SIGTERM)


def kill_in_turn(job):
    for process in all_processes(job):
        process.kill()
        process.wait(timeout=30)


def scancel(job):
    signal_all(job, signal.SIGTERM)
    time.sleep(0.5)  # Slurm's KillWait, shortened
    signal_all(job, signal.SIGKILL)


def gloo_timeout(job):
    """The waiting ranks raise by themselves; the guilty one is ended afterwards."""
    job.await_exit(list(range(job.ranks - 1)))
    signal_all(job, signal.SIGTERM)


def essence(trace):
    verdict = trace.verdict
    return (
        trace.status,
        verdict["kind"],
        verdict["ranks"],
        [(b["rank"], b["site"]["line"], b["op"], b["seq"]) for b in verdict["blamed"]],
        sorted((w["ranks"], w["site"]["line"]) for w in verdict["waiting"]),
    )


def hung(launch, fault, ranks=3, **env):
    """A job that hangs, its verdict, and all of its dumps there."""
    job = launch(fault, ranks, env=FAST | env)
    job.await_evidence()
    open_kinds = ("ok", "undecided")
    wait_until("the settled verdict", lambda: job.trace().verdict["kind"] not in open_kinds)
    before = essence(job.trace())
    assert before == essence(job.trace()), job.log()
    return job, before


CASES = [
    *[("skip", end) for end in (ctrl_c, term, term_twice, kill_in_turn, scancel, gloo_timeout)],
    ("group_order", ctrl_c),
    ("group_order", kill_in_turn),
    ("gil", scancel),
    ("sleep", term),
    ("sleep", kill_in_turn),
    ("skip_subgroup", ctrl_c),
]


@pytest.mark.parametrize(("fault", "end"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_what_comes_after_a_hang_does_not_outweigh_it(launch, fault, end):
    env = {"E2E_GLOO_TIMEOUT_S": "6"} if end is gloo_timeout else {}
    job, before = hung(launch, fault, 4 if fault == "group_order" else 3, **env)
    end(job)
    job.await_exit()
    trace = job.trace()
    assert essence(trace) == before, f"{trace}\n{job.log()}"
    if end is not kill_in_turn:  # the rings of those are in FR_SHM_DIR
        assert trace.verdict["ended"] is not None, trace
        assert trace.verdict["ended"]["after_s"] > 0, trace
    # the rings that SIGKILL left say the same
    both = frtrace(job.scratch / "shm", job.dumps)
    assert essence(both) == before, f"{both}\n{job.log()}"


def test_a_hang_that_passed_is_over(launch):
    """A slow checkpoint: the others waited, the job went on and ended well."""
    job = launch("late", 3, env=FAST)
    job.await_evidence()
    wait_until("the verdict of the hang", lambda: job.trace().verdict["ranks"] == [2])
    (job.scratch / "go").touch()
    assert set(job.await_exit().values()) == {0}, job.log()
    trace = job.trace()
    assert (trace.status, trace.verdict["kind"]) == (0, "ok"), trace
    assert trace.verdict["ended"]["how"] == "went_on", trace
    assert "rank 2 kept ranks 0,1 waiting in all_reduce #4 of default_pg" in str(trace.verdict)
    assert "is over" in job.log()
    # asked for, the incident is shown as it was
    (incident,) = job.incidents()
    asked = job.trace("--incident", incident)
    asked.expect("missing", [2], op="all_reduce", seq=4)
    assert asked.verdict["ended"]["how"] == "went_on", asked


def test_a_slow_start_is_over(launch, scratch):
    """A rank that imports for long, as from a cold file system; the others wait at the store."""
    script, go = scratch / "slow_start.py", scratch / "go"
    script.write_text(
        "import os, time\n"
        f"while os.environ['RANK'] == '2' and not os.path.exists({str(go)!r}):\n"
        "    time.sleep(0.05)\n" + (HERE / "plain_job.py").read_text()
    )
    job = launch("", 3, script=script, env=FAST)

    def verdict():
        trace = job.trace()
        return trace.report and trace.verdict["ranks"] == [2]

    wait_until("the verdict of the wait", verdict)
    go.touch()
    assert set(job.await_exit().values()) == {0}, job.log()
    trace = job.trace()
    assert (trace.status, trace.verdict["kind"]) == (0, "ok"), trace
    assert trace.verdict["ended"]["how"] == "went_on", trace


def test_while_it_hangs_nothing_has_ended(launch):
    job, _ = hung(launch, "skip")
    assert job.trace().verdict["ended"] is None
    assert line_of("idle") in [b["site"]["line"] for b in job.trace().verdict["blamed"]]
    assert os.kill(job.pid(0), 0) is None
