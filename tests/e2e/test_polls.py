"""Ranks that wait by looking again and again: at the store, files, memory, a queue."""

import pytest
from conftest import HERE

SCRIPT = HERE / "polls_job.py"


def line_of(mark):
    lines = SCRIPT.read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# @{mark}")]
    return line


def verdict(launch, way):
    return launch(way, 3, script=SCRIPT).await_evidence().trace()


def test_a_barrier_of_counts_in_the_store(launch):
    trace = verdict(launch, "counter")
    trace.expect("missing", [1])
    assert trace.verdict["confidence"] == "likely"
    assert f"polls_job.py:{line_of('add')} store_barrier 20 times" in trace.verdict["summary"]
    assert "ranks 0,2 21 times" in trace.verdict["summary"]


def test_a_key_that_its_usual_writer_did_not_set(launch):
    trace = verdict(launch, "key")
    trace.expect("missing", [2])
    summary = trace.verdict["summary"]
    assert summary.startswith("ranks 0,1 wait for key ready-# of the ranks' store, which rank 2 ")
    assert "wrote before (20 times at " in summary
    assert f"polls_job.py:{line_of('set')}" in summary


@pytest.mark.parametrize("way", ["files", "memory"])
def test_most_ranks_poll_outside_of_the_store(launch, way):
    """Nothing counts what they wait for; the rank in the collective is not called wrong."""
    trace = verdict(launch, way)
    trace.expect("undecided", [])
    assert "in a polling loop" in trace.verdict["summary"]


@pytest.mark.parametrize("way", ["child", "check"])
def test_one_rank_polls_and_the_others_wait_for_it(launch, way):
    trace = verdict(launch, way)
    trace.expect("missing", [0])
    assert trace.verdict["confidence"] == "likely"
    assert trace.verdict["blamed"][0]["site"]["line"] == line_of(way)
