"""Bugs as users make them: four real ranks, and what the verdict says of them."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import FRTRACE, HERE, wait_until

SCRIPT = HERE / "user_job.py"


def line_of(mark):
    lines = SCRIPT.read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# @{mark}")]
    return line


@pytest.fixture
def verdict(launch):
    """verdict(bug) -> what frtrace says of it, as JSON and as text."""

    def run(bug, ranks=4, evidence=None, **kwargs):
        job = launch(bug, ranks, script=SCRIPT, **kwargs).await_evidence(evidence)
        trace = job.trace()
        trace.text = subprocess.run(
            [FRTRACE, job.dumps], capture_output=True, text=True, timeout=60
        ).stdout
        return trace

    return run


def places(trace):
    return {b["rank"]: (Path(b["site"]["file"]).name, b["site"]["line"]) for b in blamed(trace)}


def blamed(trace):
    return trace.verdict["blamed"]


@pytest.mark.parametrize(
    ("bug", "took", "met"),
    [
        ("flock_barrier", "take_flock", "locked_barrier"),
        ("fcntl_barrier", "take_fcntl", "locked_barrier"),
        ("ofd_barrier", "take_ofd", "locked_barrier"),  # no process is named in /proc/locks
        ("filelock_barrier", None, "filelock_barrier"),  # its own line is the library's
    ],
)
def test_barrier_within_a_file_lock(verdict, bug, took, met):
    trace = verdict(bug)
    trace.expect("deadlock", [0, 1, 2, 3])
    assert trace.verdict["confidence"] == "certain"
    assert trace.verdict["summary"].startswith("rank 0 holds the lock of ")
    assert trace.verdict["summary"].endswith(
        "dataset.lock, which ranks 1-3 wait for, and waits for them in barrier #2 of default_pg"
    )
    line = {0: line_of(met)} | (dict.fromkeys((1, 2, 3), line_of(took)) if took else {})
    assert {r: places(trace)[r] for r in line} == {r: ("user_job.py", line[r]) for r in line}
    for b in blamed(trace)[1:]:
        assert any(text.endswith(", which rank 0 holds") for text in b["evidence"]), b
    for mark in filter(None, (took, met)):
        assert f"user_job.py:{line_of(mark)}" in trace.text


def test_lock_of_an_idle_rank(verdict):
    """Who waits for a lock only waits: its holder, who waits for nobody, is to blame."""
    trace = verdict("flock_of_idle")
    trace.expect("missing", [0])
    assert places(trace) == {0: ("user_job.py", line_of("keeps_lock"))}
    # where the others are that do not wait in an operation
    (text,) = [f["text"] for f in trace.report["findings"] if f["id"] == "elsewhere"]
    assert text.startswith("ranks 1,2 are in flock_of_idle() at ")
    assert f"user_job.py:{line_of('waits_for_idle')}, asleep in flock; " in text
    assert text.endswith("; each waits for the lock of dataset.lock, which rank 0 holds")


def said(trace, *ids):
    return [f["text"] for f in trace.report["findings"] if f["id"] in ids]


def test_one_batch_fewer(verdict):
    trace = verdict("uneven_loader")
    trace.expect("mismatch", [3])
    summary = trace.verdict["summary"]
    assert f"user_job.py:{line_of('evaluate')} uneven_loader, where ranks 0-2 issued it" in summary
    assert f"user_job.py:{line_of('train')} uneven_loader (shape [2] instead of [1348])" in summary
    (counts,) = said(trace, "counts")
    assert counts.endswith("8 times, the others 9 times"), counts
    assert f"user_job.py:{line_of('train')}" in counts


def test_the_others_are_at_the_barrier(verdict):
    trace = verdict("more_steps")
    trace.expect("mismatch", [0], waiting=None)
    (waiting,) = trace.verdict["waiting"]
    assert (waiting["ranks"], waiting["op"]) == ([1, 2, 3], "barrier")
    assert waiting["site"]["line"] == line_of("fewer_steps")
    (counts,) = said(trace, "counts")
    assert counts.endswith("5 times, the others 4 times"), counts
    assert not said(trace, "hint")


def test_one_asynchronous_operation_fewer(verdict):
    trace = verdict("async_missing")
    trace.expect("mismatch", [1])
    (counts,) = said(trace, "counts")
    assert counts.endswith("7 times, the others 8 times"), counts


def test_silent_skip_in_a_mesh(verdict):
    """Long over: its later operations met the wrong ones, and nothing hung until the end."""
    trace = verdict("mesh_skip")
    trace.expect("missing", [3])
    (parted,) = said(trace, "parted")
    assert parted.startswith("rank 3 left out all_reduce at ")
    assert f"user_job.py:{line_of('tensor_parallel')} mesh_skip in step 6; since then" in parted
    assert parted.endswith("results are wrong from there")


def test_an_extra_operation_of_a_stage(verdict):
    """A loss every few steps is no order that the other stages left."""
    trace = verdict("pipeline_extra")
    assert trace.verdict["ranks"] == [1], trace.verdict["summary"]
    assert places(trace) == {1: ("user_job.py", line_of("pipeline_extra"))}


def test_a_message_that_does_not_fit(verdict):
    """The receiver aborts, and is not to blame."""
    trace = verdict("longer_sequence", evidence=[1, 2])
    trace.expect("mismatch", [1], waiting=None)
    summary = trace.verdict["summary"]
    assert "rank 1 sends 1536 elements to rank 2, which receives 1024 elements" in summary
    assert places(trace) == {1: ("user_job.py", line_of("longer_sequence"))}


def test_a_server_of_any_rank_waits(verdict):
    trace = verdict("any_source")
    trace.expect("missing", [3])
    assert places(trace) == {3: ("user_job.py", line_of("any_source"))}


def test_a_tag_that_nobody_receives(verdict):
    trace = verdict("other_tag")
    trace.expect("mismatch", [0, 1], waiting=None)
    assert trace.verdict["confidence"] == "possible"
    summary = trace.verdict["summary"]
    assert "rank 0 sends with tag 3 to rank 1, which receives with tag 2" in summary


def test_who_is_aborted_by_its_transport_is_not_to_blame(verdict):
    trace = verdict("other_buckets")
    trace.expect("mismatch", [3])
    assert places(trace) == {3: ("user_job.py", line_of("other_buckets"))}


def test_what_follows_a_lost_peer_is_no_fault(verdict):
    verdict("barrier_at_exit", evidence=[0, 1, 2]).expect("exited", [3], waiting=None)


def test_what_comes_every_few_steps_was_left_out(verdict):
    """Without it the rank issues the same collective again, as in most steps."""
    trace = verdict("shard_not_sent")
    trace.expect("missing", [3])
    assert "rank 3 skipped send #3 of default_pg to rank 0" in trace.verdict["summary"]
    assert f"user_job.py:{line_of('sends_shard')}" in trace.verdict["summary"]


def test_who_leaves_a_loop_left_out_what_was_next(verdict):
    """The others never come to the barrier that it is in, and no two stages issue the same."""
    trace = verdict("chain_left")
    trace.expect("missing", [0])
    assert "rank 0 skipped send #7 of default_pg to rank 1" in trace.verdict["summary"]
    assert f"user_job.py:{line_of('chain_send')}" in trace.verdict["summary"]
    assert blamed(trace)[0]["why"] == "skipped"


def test_the_tag_that_nobody_else_uses(verdict):
    trace = verdict("one_tag")
    trace.expect("mismatch", [3], waiting=None)
    assert places(trace) == {3: ("user_job.py", line_of("one_tag"))}
    assert "rank 3 sends with tag 5 to rank 0, which receives with tag 0" in trace.text


def test_who_usually_has_other_splits(verdict):
    trace = verdict("uneven_split")
    trace.expect("mismatch", [3], waiting=None)
    assert "rank 3 sends 6 rows to rank 1, which expects 4" in trace.text


def test_once_more_is_no_skip(verdict):
    trace = verdict("once_more")
    trace.expect("mismatch", [3], waiting=None)
    assert places(trace) == {3: ("user_job.py", line_of("once_more"))}


@pytest.mark.parametrize("bug", ["one_later", "skip_before_new_group"])
def test_left_out_and_gone_on_in_another_group(verdict, bug):
    """A later operation meets it and all goes on to the end; or it makes a group next."""
    trace = verdict(bug)
    trace.expect("missing", [3], waiting=None)
    assert blamed(trace)[0]["why"] == "skipped", trace.verdict["summary"]
    assert trace.verdict["summary"].startswith("rank 3 skipped all_reduce #5 of pairs{")


def test_a_thread_that_ended(verdict):
    """What the rank's main thread waits in is not why its other thread did not come."""
    trace = verdict("checkpointer_ended")
    trace.expect("missing", [3], waiting=None)
    assert "never issued all_reduce #6 of checkpoints" in trace.verdict["summary"]


def test_a_thread_that_died_is_named_beside_who_waits_for_it(verdict):
    trace = verdict("thread_died")
    trace.expect("missing", [3])
    evidence = blamed(trace)[0]["evidence"]
    place = f"is in thread_died() at {SCRIPT}:{line_of('waits_for_thread')}, in "
    assert evidence[0].startswith(place), evidence
    line = line_of("thread_dies")
    assert evidence[1] == (
        f"its thread fetcher died of KeyError: 'layer.7', at user_job.py:{line} in fetch"
    )
    assert "waits in Queue.get() for an item" in evidence
    assert "its thread fetcher died of KeyError" in trace.text


def test_a_saver_that_died_early(verdict):
    trace = verdict("saver_died")
    trace.expect("missing", [3], waiting=None)
    assert "never issued all_reduce #2 of checkpoints" in trace.verdict["summary"]
    died = "its thread saver died of OSError: [Errno 28] No space left on device, at user_job.py:"
    assert f"{died}{line_of('saver_dies')} in save" in blamed(trace)[0]["evidence"]


def test_threads_have_no_order_between_them(verdict):
    """The thread that waits for another one is not out of order with what that one is in."""
    trace = verdict("batch_swallowed")
    trace.expect("missing", [3], waiting=None)
    assert "never issued all_reduce #21 of default_pg" in trace.verdict["summary"]
    assert "results are wrong" not in trace.text


def test_who_makes_no_group_is_named_and_not_who_waits_there(verdict):
    trace = verdict("no_new_group")
    trace.expect("missing", [3], waiting=None)
    assert trace.verdict["summary"].startswith("rank 3 never entered new_group; rank 0 waits there")


def test_a_failed_connection_is_not_fine(verdict):
    trace = verdict("failed_connection", evidence=[3])
    trace.expect("undecided", [])
    assert "rank 3: RuntimeError: Gloo connectFullMesh failed" in trace.verdict["summary"]


def test_a_late_rank_is_told_once_while_the_job_runs(launch, scratch):
    job = launch("straggler", 4, script=SCRIPT)
    wait_until("a word of rank 2", lambda: "is late again and again" in job.log())
    (scratch / "stop").touch()
    job.await_exit()
    (line,) = [text for text in job.log().splitlines() if "late again and again" in text]
    told = re.search(r"rank 2 is late .*: (\d+) of the last 10 all_reduce at (\S+) waited", line)
    assert told, line
    assert int(told[1]) >= 5
    assert told[2] == f"user_job.py:{line_of('waits_for_late')}"
    assert line.endswith(f"frtrace stacks {job.processes[2].pid}"), line


def test_all_ranks_that_became_slow_are_told_of_once_while_the_job_runs(launch, scratch):
    job = launch("all_slower", 3, script=SCRIPT)
    wait_until("a word of all ranks", lambda: "became slow" in job.log())
    (scratch / "stop").touch()
    job.await_exit()
    (line,) = [text for text in job.log().splitlines() if "became slow" in text]
    assert "all 3 ranks of this node became slow: a step takes 15" in line, line
    since = re.search(r"since step (\d+) \(", line)
    assert since and abs(int(since[1]) - 40) <= 1, line
    assert f"all_slower() at user_job.py:{line_of('slower')}" in line, line


def test_who_is_late_since_which_step(verdict):
    trace = verdict("slow_data")
    trace.expect("slow", [1])
    (late,) = trace.report["stragglers"]
    assert (late["rank"], late["op"], late["cause"]) == (1, "all_reduce", "host")
    assert late["site"]["line"] == line_of("slow_data")
    assert abs(late["since_step"] - 12) <= 1
    assert not late["since_first"]
    assert late["of"] - late["late"] <= 3
    assert late["last"] >= late["of"] - 3
    assert 0.02 < late["median_s"] < 0.2
    assert "rank 1 is the last to issue all_reduce of default_pg" in " ".join(trace.text.split())
    (change,) = late["step_time_changes"]
    assert abs(change["step"] - 12) <= 2
    assert change["after_s"] > 2 * change["before_s"]


def test_another_root(verdict):
    trace = verdict("broadcast_root")
    trace.expect("mismatch", [2])
    assert "root 2 instead of 0" in trace.verdict["summary"]
    assert not said(trace, "why")  # the first line says both sides
    assert "broadcast [16,16] Float root 2 at " in blamed(trace)[0]["evidence"][0]
