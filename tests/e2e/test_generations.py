"""Restarts within the processes: groups that are destroyed and made anew."""

import os
import re
import signal
import time

from conftest import HERE, frtrace, wait_until

SCRIPT = HERE / "generations_job.py"
FIRST = r"rank 1 caught RuntimeError at generations_job.py:\d+ in train: bad batch 10; all ranks "
FIRST += r"made their groups anew and went on [\d.]+ m?s later, in try 2"


def line_of(mark):
    lines = SCRIPT.read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# @{mark}")]
    return line


def restarts(trace):
    return [f["text"] for f in trace.report["findings"] if f["id"] == "restart"]


def texts(trace):
    return "\n".join(f["text"] for f in trace.report["findings"])


def awaited(launch, scratch, way, attempt, ranks=3):
    job = launch(way, ranks, script=SCRIPT)
    last = ranks - 1 if way != "fewer" else ranks - 2
    tried = scratch / f"try.{attempt}.{last}"
    wait_until(f"try {attempt}", tried.exists)
    return job


def test_all_go_on_in_a_second_try(launch, scratch):
    job = awaited(launch, scratch, "go_on", 1)
    time.sleep(0.3)  # some steps
    live = frtrace(scratch / "shm")
    live.expect("ok", [])
    assert re.fullmatch(FIRST, restarts(live)[0])
    for process in job.processes.values():
        os.kill(process.pid, signal.SIGINT)
    job.await_exit()
    trace = job.trace()
    trace.expect("ok", [])
    assert re.fullmatch(FIRST, restarts(trace)[0])
    assert "earlier run" not in texts(trace)
    assert "incident 1 is over: the ranks made their groups anew" in job.log()


def test_another_hang_in_the_second_try(launch, scratch):
    job = awaited(launch, scratch, "hang", 1).await_evidence(incident=2)
    trace = job.trace()
    trace.expect("missing", [0])
    assert trace.verdict["blamed"][0]["site"]["line"] == line_of("hang")
    assert trace.verdict["blamed"][0]["seq"] == 16
    assert len(restarts(trace)) == 1
    assert "after that" not in texts(trace)


def test_three_tries(launch, scratch):
    job = awaited(launch, scratch, "three", 2)
    wait_until("evidence", lambda: set(job.evidence(incident=3)) == {0, 1, 2})
    trace = wait_until("the hang", lambda: of_kind(job.trace(), "missing", [1], 6))
    first, second = restarts(trace)
    assert re.fullmatch(FIRST, first)
    assert second.startswith("rank 2 caught ValueError at ") and "bad batch 7; " in second
    assert second.endswith(", in try 3")


def test_fewer_ranks_in_the_second_try(launch, scratch):
    """Rank 1 leaves: what was rank 2 is rank 1 of three."""
    job = awaited(launch, scratch, "fewer", 1, ranks=4)
    wait_until("evidence", lambda: set(job.evidence(incident=2)) == {0, 1, 2})
    trace = wait_until("the hang", lambda: of_kind(job.trace(), "missing", [0], 16))
    assert trace.report["input"]["expected"] == 3, trace.report["input"]
    assert [w["ranks"] for w in trace.verdict["waiting"]] == [[1, 2]]


def of_kind(trace, kind, ranks, seq):
    if not trace.report or trace.verdict["kind"] != kind or trace.verdict["ranks"] != ranks:
        return None
    return trace if trace.verdict["blamed"][0]["seq"] == seq else None


def test_two_processes_with_one_rank(launch):
    job = launch("go_on", 4, script=SCRIPT, rank_env={3: {"RANK": 2, "LOCAL_RANK": 2}})
    wait_until("evidence", lambda: {0, 1, 2} <= set(job.evidence()))
    trace = wait_until("the verdict", lambda: twins(job.trace()))
    pids = sorted(job.processes[r].pid for r in (2, 3))
    assert re.fullmatch(
        r"two processes say they are rank 2 \(pids (\d+) on [\w.-]+, (\d+) on [\w.-]+\); no rank 3",
        trace.verdict["summary"],
    )
    assert sorted(map(int, re.findall(r"(\d+) on", trace.verdict["summary"]))) == pids
    names = [p.name for p in job.dumps.rglob("*.fr")]
    assert all(any(f".r2.p{pid}." in name for name in names) for pid in pids), names


def twins(trace):
    return trace if trace.report and "say they are" in trace.verdict["summary"] else None
