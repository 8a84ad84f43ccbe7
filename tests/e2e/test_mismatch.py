"""Ranks of a running job that issue different operations are told of, before anything hangs."""

import re
import time
from pathlib import Path

import pytest
from conftest import QUIET, wait_until

SCRIPT = Path(__file__).with_name("mismatch_job.py")


def line_of(mark):
    lines = SCRIPT.read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# @{mark}")]
    return line


def told(job):
    return [line for line in job.log().splitlines() if "mismatch" in line]


CASES = {
    "exchanged": (
        r"rank 1 issued all_reduce #\d+ of default_pg at mismatch_job.py:{losses} \(losses\) and "
        r"#\d+ at mismatch_job.py:{sums} \(sums\); ranks 0,2,3 issued all_reduce #\d+ at "
        r"mismatch_job.py:{sums} \(sums\) and #\d+ at mismatch_job.py:{losses} \(losses\); two "
    ),
    "reduce_op": (
        r"rank 1 issued all_reduce #\d+ of default_pg at mismatch_job.py:{reduce_op} "
        r"\(reduce_op\), reduce op MAX; ranks 0,2,3 issued all_reduce #\d+ at "
        r"mismatch_job.py:{reduce_op} "
        r"\(reduce_op\), reduce op SUM"
    ),
    "dtype": (
        r"rank 1 issued all_reduce #\d+ of default_pg at mismatch_job.py:{dtype} \(dtype\), dtype "
        r"Int; ranks 0,2,3 issued all_reduce #\d+ at mismatch_job.py:{dtype} \(dtype\), dtype Float"
    ),
}


@pytest.mark.parametrize("fault", CASES)
def test_a_mismatch_that_does_not_hang_is_told_of(launch, scratch, fault):
    job = launch(fault, 4, script=SCRIPT, env=QUIET)
    wait_until("the step", lambda: len(list(scratch.glob("reached.*"))) == 4)
    begun = time.monotonic()
    wait_until("a word of it", lambda: told(job))
    assert time.monotonic() - begun < 10
    assert not job.incidents()
    (scratch / "told").touch()
    job.await_evidence()
    (scratch / "stop").touch()
    assert set(job.await_exit().values()) == {0}
    (line,) = told(job)
    marks = {m: line_of(m) for m in re.findall(r"{(\w+)}", CASES[fault])}
    assert re.search("mismatch: " + CASES[fault].format(**marks), line), line
    (shown,) = [x["text"] for x in job.trace().report["findings"] if x["id"] == "told"]
    assert shown and shown in line, (shown, line)  # a note is shorter


def test_it_can_be_switched_off(launch, scratch):
    job = launch("dtype", 2, script=SCRIPT, env=QUIET | {"FR_MISMATCH": "0"})
    wait_until("the step", lambda: len(list(scratch.glob("reached.*"))) == 2)
    (scratch / "stop").touch()
    job.await_exit()
    assert not told(job)


def test_ranks_that_differ_by_right(launch, scratch):
    job = launch("healthy", 4, script=SCRIPT, env=QUIET)
    wait_until("the step", lambda: len(list(scratch.glob("reached.*"))) == 4)
    (scratch / "stop").touch()
    assert set(job.await_exit().values()) == {0}, job.log()
    assert not told(job)
