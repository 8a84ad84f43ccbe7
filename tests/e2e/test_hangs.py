"""Ranks that hang: every rank's evidence is on disk soon after, and the verdict is right."""

import os
import re
import signal
import time

import pytest
from conftest import line_of, wait_until


def test_skip_in_world_group(launch):
    trace = launch("skip", 3).await_evidence().trace()
    trace.expect(
        "missing",
        [2],
        op="all_reduce",
        seq=4,
        desc="default_pg",
        at="steps",
        now="idle",
        waiting={"meet": [0, 1]},
    )
    assert trace.verdict["confidence"] == "certain"
    assert trace.report["input"]["missing_ranks"] == []


def test_skip_in_subgroup(launch):
    """Rank 0 waits for ranks that themselves wait: only rank 3 is to blame."""
    trace = launch("skip_subgroup", 4).await_evidence().trace()
    trace.expect(
        "missing", [3], op="all_reduce", seq=1, desc="experts", waiting={"subgroup": [1, 2]}
    )


def test_sleep_in_user_code(launch):
    trace = launch("sleep", 3).await_evidence().trace()
    trace.expect("missing", [2], seq=4, at="steps", now="load_batch", waiting={"meet": [0, 1]})
    assert trace.verdict["blamed"][0]["site"]["function"] == "load_batch"


def test_wait_at_the_store(launch):
    """Nothing but calls of the store is in flight: these raise an incident, too."""
    trace = launch("store", 3).await_evidence().trace()
    trace.expect("missing", [2], now="idle")
    assert "in the ranks' store" in trace.verdict["summary"]
    assert trace.verdict["confidence"] == "possible"


def test_stale_lock_of_a_killed_build(launch, scratch):
    """torch's build of an extension waits for ever; the verdict has all that explains it."""
    build = scratch / "build"
    build.mkdir()
    (scratch / "ext.cpp").touch()
    (build / "lock").touch()
    three_hours_ago = time.time() - 3 * 3600
    os.utime(build / "lock", (three_hours_ago, three_hours_ago))
    # no timeout: before it waits, the guilty one imports for a while
    job = launch("stale_lock", 4, env={"FR_TIMEOUT_S": "600", "FR_SIGNAL": "USR2"})
    job.await_live("missing")
    incident = 0

    def waiting():
        nonlocal incident
        incident += 1
        os.kill(job.pid(3), signal.SIGUSR2)
        trace = job.await_evidence(incident=incident).trace()
        said = str(trace.verdict)  # and on a busy machine it may be on its way in or out of sleep
        asleep = "asleep in clock_nanosleep" in said or "polling in clock_nanosleep" in said
        return trace if "FileBaton.wait" in said and asleep else None

    trace = wait_until("FileBaton.wait", waiting)
    trace.expect("missing", [3], op="all_reduce", seq=4, at="steps", waiting={"meet": [0, 1, 2]})
    (blamed,) = trace.verdict["blamed"]
    said = "\n".join(blamed["evidence"])
    assert f"job.py:{line_of('load')}, in FileBaton.wait() at torch/utils/file_baton.py:" in said
    assert "self.wait_seconds" not in said  # of a library's frame
    assert "asleep in clock_nanosleep" in said or "polling in clock_nanosleep" in said
    assert f"waits for the lock file {build}/lock to go; it still exists, made 3.0 h ago" in said
    assert "before this process began, no process" in said and "has it open: stale" in said
    crumbs = r'last note "building extension", step 20( \(.*\))?, span "startup" open for \d'
    assert re.search(crumbs, said), said


def test_gil_held_for_ever(launch):
    job = launch("gil", 2).await_evidence()
    job.trace().expect("missing", [1], seq=4, at="steps", now="gil", waiting={"meet": [0]})


def test_stopped_rank_is_salvaged(launch):
    job = launch("sigstop", 3).await_evidence()
    trace = job.trace("--stacks")
    trace.expect("missing", [2], op="all_reduce", seq=4, at="steps", waiting={"meet": [0, 1]})
    (stopped,) = [
        c for c in trace.report["stacks"]["classes"] if c["ranks"] == "2" and c["role"] == "main"
    ]
    assert "stopped" in stopped["doing"], stopped  # by /proc: it could not be asked


def test_groups_made_in_another_order(launch):
    trace = launch("group_order", 4).await_evidence().trace()
    trace.expect("deadlock", [3], op="new_group", at="new_group")


def test_after_more_groups_than_a_ring_has_rows(launch):
    """Rows of groups that were destroyed are used again: nothing is unattributed."""
    job = launch("many_groups", 2, env={"FR_TIMEOUT_S": "5"})
    trace = job.await_evidence().trace()
    trace.expect("deadlock", [0, 1], op="all_reduce", seq=1, at="circle")
    assert [b["desc"] for b in trace.verdict["blamed"]] == ["first", "second"]


def test_idle_ranks_dump_too(launch):
    """A rank outside of the stuck group with nothing in flight."""
    trace = launch("idle_bystander", 3).await_evidence([0, 1, 2]).trace()
    trace.expect("missing", [1], op="all_reduce", seq=1, desc="pair", waiting={"pair": [0]})


def test_destroy_process_group_hangs(launch):
    job = launch("destroy_hangs", 2).await_evidence()
    job.trace().expect("missing", [1], op="all_reduce", seq=4, waiting={"abandoned": [0]})


@pytest.mark.parametrize("fault", ["size", "dtype", "op"])
def test_mismatch(launch, fault):
    """On some of these gloo aborts an innocent rank, others get an error, the rest hangs."""
    job = launch(fault, 3).await_evidence()
    job.trace().expect("mismatch", [2], seq=4, desc="default_pg", at=fault)


def test_mismatch_under_torchrun(launch):
    """Whoever gloo ends first is innocent, and torchrun then ends the others."""
    job = launch("size", 3, torchrun=True)
    job.await_exit()
    job.await_evidence().trace().expect("mismatch", [2], seq=4, at="size")


def test_second_incident_keeps_the_first(launch, scratch):
    job = launch("twice", 2).await_evidence(incident=1)
    kept = {
        path: path.read_bytes() for paths in job.evidence(incident=1).values() for path in paths
    }
    (scratch / "first").touch()  # rank 1 comes, everything goes on

    def second():  # the first hang may have had more dumps before it was over
        for incident in job.incidents()[1:]:
            if len(job.evidence(incident=incident)) == 2:
                blamed = job.trace("--incident", incident).verdict["blamed"]
                if [b["seq"] for b in blamed] == [8]:
                    return incident

    later = wait_until("an incident of the second hang", second)
    (scratch / "second").touch()
    assert job.await_exit() == {0: 0, 1: 0}
    assert {path: path.read_bytes() for path in kept} == kept
    job.trace("--incident", 1).expect("missing", [1], op="all_reduce", seq=4)
    job.trace("--incident", later).expect("missing", [1], op="all_reduce", seq=8)


def test_two_jobs_share_a_dump_directory(launch):
    ours = launch("skip", 2, env={"FR_JOB": "ours"})
    theirs = launch("size", 3, env={"FR_JOB": "theirs"})
    ours.await_evidence()
    theirs.await_evidence()
    ours.trace("--job", "ours").expect("missing", [1])
    theirs.trace("--job", "theirs").expect("mismatch", [2])
    assert ours.trace().status == 1


def test_ranks_of_other_nodes_follow(launch, scratch):
    """Two 'nodes' share nothing but the dump directory; on one of them nothing is in flight."""
    for node in ("a", "b"):
        (scratch / f"shm-{node}").mkdir()
    a = {"FR_SHM_DIR": scratch / "shm-a", "LOCAL_WORLD_SIZE": 2}
    b = {"FR_SHM_DIR": scratch / "shm-b", "LOCAL_WORLD_SIZE": 1, "LOCAL_RANK": 0}
    node = {0: a | {"LOCAL_RANK": 0}, 1: a | {"LOCAL_RANK": 1}, 2: b}
    job = launch("skip", 3, rank_env=node).await_evidence()
    job.trace().expect("missing", [2], op="all_reduce", seq=4, waiting={"meet": [0, 1]})
