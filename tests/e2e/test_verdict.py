"""The job's own log says who is at fault, once; torchrun's report has it; else nothing is said."""

import json
import re
import signal

import pytest
from conftest import HERE, QUIET, frtrace, wait_until

SAYS = {"FR_VERDICT": "1"}
LONG = SAYS | QUIET
HEADLINE = re.compile(r"^\[fr \S+:(\d+)\] ([A-Z]{4,}) +(\S.*)", re.M)


def verdict_of(job, incident=1):
    """The report, as soon as it is there."""

    def there():
        path = job.dumps / f"{job.name}.verdict.json"
        report = json.loads(path.read_text()) if path.exists() else {}
        return report if report.get("incident", 0) >= incident else None

    try:
        return wait_until("the verdict", there)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{job.log()}") from None


def headlines(job):
    return HEADLINE.findall(job.log())


def said(job):
    """Waits until the verdict is on a rank's stderr."""
    try:
        return wait_until("a verdict on stderr", lambda: headlines(job))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{job.log()}") from None


def test_one_rank_says_it_for_all(launch):
    job = launch("skip", 4, env=SAYS)
    report = verdict_of(job)
    assert said(job) == [("0", "MISSING", headlines(job)[0][2])], job.log()
    assert "rank 3 never issued all_reduce" in headlines(job)[0][2]
    assert report["verdict"] == job.trace().report["verdict"]
    text = (job.dumps / "job.verdict.txt").read_text()
    assert text.startswith("MISSING") and f"more: frtrace -v {job.dumps}" in text
    for line in text.splitlines()[:-1]:  # the last is for libfr
        assert f"] {line}\n" in job.log(), line
    said_lines = [line for line in job.log().splitlines() if "no progress for" not in line]
    assert all(len(line) <= 120 for line in said_lines)
    lines = [line for line in job.log().splitlines() if line.startswith("[fr ")]
    warnings = [line for line in lines if "no progress" in line and "dump 1" not in line]
    dumps = [line for line in lines if "] dump " in line]
    assert len(warnings) == 1 and "ranks 0,1,2 of this node: no progress" in warnings[0], lines
    assert len(dumps) == 1, lines


def test_the_same_hang_is_said_once(launch):
    job = launch("skip", 2, env=SAYS | {"FR_TIMEOUT_S": "1"})
    verdict_of(job, incident=2)
    assert len(said(job)) == 1, job.log()


def test_nothing_is_said_while_all_is_well(launch):
    job = launch("none", 3, env=LONG)
    assert set(job.await_exit().values()) == {0}
    assert "[fr " not in job.log()
    assert not job.dumps.exists() or not list(job.dumps.iterdir())


def test_switched_off(launch):
    job = launch("skip", 2, env={"FR_VERDICT": "0"})
    job.await_evidence()
    signalled = job.processes[0]
    signalled.send_signal(signal.SIGTERM)
    job.await_exit([0])
    assert not headlines(job) and not list(job.dumps.glob("*.verdict.*"))


def test_a_stopped_rank_does_not_keep_it_from_being_said(launch):
    job = launch("skip", 3, env=SAYS | {"FR_TIMEOUT_S": "3"})
    wait_until("the guilty rank's place", lambda: "no progress" in job.log())
    job.processes[0].send_signal(signal.SIGSTOP)
    assert verdict_of(job)["verdict"]["ranks"]
    assert said(job)[0][0] != "0", job.log()
    job.processes[0].send_signal(signal.SIGCONT)


def nodes(scratch, shared):
    """Four ranks on what look like two machines: ring directories of their own, and perhaps dump
    directories."""
    env = {}
    for rank in range(4):
        node = scratch / f"node{rank // 2}"
        (node / "shm").mkdir(parents=True, exist_ok=True)
        env[rank] = {"FR_SHM_DIR": node / "shm", "LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": rank % 2}
        if not shared:
            env[rank]["FR_DUMP_DIR"] = node / "dumps"
    return env


def test_two_nodes_say_it_once(launch, scratch):
    job = launch("skip", 4, env=SAYS, rank_env=nodes(scratch, shared=True))
    report = verdict_of(job)
    assert (report["verdict"]["kind"], report["verdict"]["ranks"]) == ("missing", [3])
    job.kill()
    assert [who for who, *_ in said(job)] == ["0"], job.log()


def test_two_launchers_on_one_machine_are_one_node(launch):
    halves = {r: {"LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": r % 2} for r in range(4)}
    job = launch("sleep", 4, env=SAYS, rank_env=halves)
    report = verdict_of(job)["verdict"]
    assert (report["kind"], report["ranks"]) == ("missing", [3]), job.log()


def test_a_node_that_sees_only_itself_blames_nobody(launch, scratch):
    job = launch("skip", 4, env=SAYS, rank_env=nodes(scratch, shared=False))
    line = "has dumps of this node's ranks only"
    wait_until("the hint", lambda: line in job.log())
    job.kill()
    assert not headlines(job), job.log()
    trace = frtrace(scratch / "node0", scratch / "node1")
    assert (trace.verdict["kind"], trace.verdict["ranks"]) == ("missing", [3])


def root_cause(log):
    (text,) = re.findall(r"Root Cause \(first observed failure\):\n(.*?)={10}", log, re.S)
    return int(re.search(r"rank +: (\d+)", text)[1]), text


@pytest.mark.parametrize(
    "fault, says",
    [
        ("kill", "EXITED     rank 2 ended and left no exit status"),
        ("exception", "EXITED     rank 2 raised "),
        ("abort", "EXITED     rank 2 was ended by SIGABRT"),
        ("os_exit", "EXITED     rank 2 ended and left no exit status"),
    ],
)
def test_torchruns_report_has_it(launch, fault, says):
    job = launch(fault, 3, torchrun=True, env=LONG)
    assert job.await_exit()["torchrun"] != 0
    rank, text = root_cause(job.log())
    assert rank == 2, job.log()
    report = job.log()[job.log().index("Failures:") :]
    assert report.count(says) == 1, job.log()
    assert fault in ("kill", "os_exit") or "rank 2 (host " in text, job.log()
    assert f"frtrace -v {job.dumps}" in report or f"frtrace {job.dumps}" in report, report


RECORDED = """
import os, sys
import fr, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(2))
    if os.environ["RANK"] == "1":
        raise ValueError("the user's own words")
    dist.all_reduce(torch.ones(2))

main()
"""


def test_the_users_own_error_file_stays(launch, scratch):
    script = scratch / "recorded.py"
    script.write_text(RECORDED)
    job = launch("", 2, torchrun=True, script=script, env=LONG)
    assert job.await_exit()["torchrun"] != 0
    rank, text = root_cause(job.log())
    assert rank == 1 and "the user's own words" in text and "recorded.py" in text, job.log()
    # frtrace is nobody's child: it may say so after torchrun's end.
    says = "EXITED     rank 1 raised ValueError: the user's own words"
    wait_until("the verdict", lambda: says in job.log())


def test_the_scripts_own_children_are_left_alone(launch, scratch):
    """frtrace is no child of the rank: os.wait() does not see it, SIGCHLD does not come."""
    job = launch("", 2, script=HERE / "verdict_job.py", env=SAYS)
    verdict_of(job)
    for rank in range(2):
        job.processes[rank].send_signal(signal.SIGUSR1)
    assert set(job.await_exit().values()) == {0}, job.log()
    assert "children seen: 0" in job.log(), job.log()
