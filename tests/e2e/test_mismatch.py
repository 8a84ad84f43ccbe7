"""Ranks of a running job that issue different operations cause a warning before anything hangs."""

import re
import time
from pathlib import Path

import msgpack
import pytest
import zstandard
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


def kinds_of_records(job):
    path = job.evidence()[0][0]
    with path.open("rb") as file:
        dump = msgpack.unpackb(zstandard.ZstdDecompressor().stream_reader(file).read())
    at = dump["records"]["fields"].index("kind")
    return {row[at] for row in dump["records"]["rows"] if row}


SAMPLED = {
    "nan": r"NaN entered at rank 1, step 20, all_reduce #\d+ of default_pg at "
    r"mismatch_job.py:{nan} \(nan\); everybody has it since",
    "early_write": r"output of all_reduce #\d+ of default_pg at mismatch_job.py:{early_write} "
    r"\(early_write\) differs on rank 1, ranks 0,2,3 agree",
}


WAYS = {"cpu": {"FR_FINGERPRINT": "1"}, "device": {"FR_FINGERPRINT": "1", "REHEARSE_DEVICE": "1"}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", SAMPLED)
def test_samples_name_the_rank(launch, scratch, fault, way):
    job = launch(fault, 4, script=SCRIPT, env=QUIET | WAYS[way])
    pattern = SAMPLED[fault].format(**{fault: line_of(fault)})
    wait_until("a word of it", lambda: re.search(pattern, job.log()) or job.log().count("Error"))
    assert re.search(pattern, job.log()), job.log()
    (scratch / "told").touch()
    job.await_evidence()
    (scratch / "stop").touch()
    assert set(job.await_exit().values()) == {0}
    assert len(re.findall("entered|differs", job.log())) == 1, job.log()
    (shown,) = [x["text"] for x in job.trace().report["findings"] if x["id"] == "told"]
    assert re.search(pattern[:40], shown)


def test_replicas_that_differ(launch, scratch):
    job = launch("replicas", 4, script=SCRIPT, env=QUIET)
    wait_until("the step", lambda: len(list(scratch.glob("reached.*"))) == 4)
    (scratch / "stop").touch()
    assert set(job.await_exit().values()) == {0}, job.log()
    line = "replicas: 0.bias differs on rank 1; ranks 0,2-3 agree"
    assert {path.read_text() for path in scratch.glob("replicas.*")} == {line}
    assert job.log().count(line) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", ["healthy", "overflow"])
def test_samples_of_what_is_right(launch, scratch, program, way):
    job = launch(program, 4, script=SCRIPT, env=QUIET | WAYS[way])
    wait_until("the step", lambda: len(list(scratch.glob("reached.*"))) == 4)
    (scratch / "told").touch()
    job.await_evidence([0])
    (scratch / "stop").touch()
    assert set(job.await_exit().values()) == {0}, job.log()
    assert "entered" not in job.log() and "differs" not in job.log(), job.log()
    assert "sample" in kinds_of_records(job)
