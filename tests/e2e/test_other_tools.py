"""Evidence of other tools beside, or in the place of, a rank's own."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import frtrace, line_of, wait_until

PY_SPY = Path(sys.executable).parent / "py-spy"


def stacks_of(pid, path):
    got = subprocess.run(
        [PY_SPY, "dump", "--json", "--pid", str(pid)], capture_output=True, text=True
    )
    if got.returncode != 0:
        pytest.skip(f"py-spy may not look into other processes here: {got.stderr}")
    path.write_text(got.stdout)


def test_py_spy_says_where_the_rank_without_a_dump_is(launch, scratch):
    job = launch("skip", 3)
    job.await_evidence()
    named, plain = scratch / "named", scratch / "plain"
    for directory in (named, plain):
        directory.mkdir()
        for rank in (0, 1):
            (path, *_) = job.evidence(incident=1)[rank]
            (directory / path.name).write_bytes(path.read_bytes())
    stacks_of(job.pid(2), named / "host.rank2.json")
    trace = frtrace(named)
    assert (trace.verdict["kind"], trace.verdict["ranks"]) == ("missing", [2]), trace
    (blamed,) = trace.verdict["blamed"]
    assert Path(blamed["site"]["file"]).name == "job.py"
    assert blamed["site"]["line"] == line_of("idle") and blamed["site"]["function"] == "idle"
    assert trace.verdict["confidence"] == "likely"
    assert frtrace(plain).verdict["kind"] != "missing"  # without it


def test_a_rank_whose_stack_is_in_an_operation_is_not_named(launch, scratch):
    job = launch("skip", 3)
    job.await_evidence()
    other = scratch / "other"
    other.mkdir()
    (path, *_) = job.evidence(incident=1)[1]
    (other / path.name).write_bytes(path.read_bytes())
    stacks_of(job.pid(0), other / "host.rank0.json")  # which waits in all_reduce
    trace = frtrace(other)
    assert 0 not in trace.verdict["ranks"], trace
    assert "it may wait itself" in str(trace.report["findings"])


HANG = """
import faulthandler, os, sys, time
faulthandler.dump_traceback_later(0.2, file=open(sys.argv[1], "w"))

def load_batch():
    while not os.path.exists("/nonexistent"):
        time.sleep(0.05)

load_batch()
"""


def test_faulthandler_in_the_rank_s_folder(launch, scratch):
    job = launch("skip", 2)
    job.await_evidence()
    logs = scratch / "logs"
    (logs / "1").mkdir(parents=True)
    (path, *_) = job.evidence(incident=1)[0]
    (logs / path.name).write_bytes(path.read_bytes())
    text = logs / "1" / "stderr.log"
    process = subprocess.Popen([sys.executable, "-c", HANG, text])
    wait_until("faulthandler's text", lambda: text.exists() and "load_batch" in text.read_text())
    process.kill()
    process.wait()
    trace = frtrace(logs)
    assert (trace.verdict["kind"], trace.verdict["ranks"]) == ("missing", [1]), trace
    assert trace.verdict["blamed"][0]["site"]["function"] == "load_batch"
