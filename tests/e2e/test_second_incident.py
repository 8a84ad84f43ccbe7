"""A job that got over a false alarm, and then meets a fault: the verdict is the fault's, of the
state that the ranks were in then."""

import pytest
from conftest import HERE

SCRIPT = HERE / "second_job.py"


@pytest.mark.parametrize(
    ("fault", "kind", "torchrun"),
    [
        ("kill", "exited", True),
        ("kill", "exited", False),
        ("exit", "exited", False),
        ("exception", "exited", True),
        ("stop", "missing", False),
        ("sleep", "missing", False),
        ("skip", "mismatch", False),
    ],
)
def test_a_fault_after_a_false_alarm(launch, fault, kind, torchrun):
    job = launch(fault, 4, script=SCRIPT, torchrun=torchrun)
    trace = job.await_verdict(kind, 14)
    assert trace.verdict["ranks"] == [2], trace
    if torchrun and kind == "exited":
        job.await_exit()
        trace = job.trace()
        trace.expect(kind, [2])
    (blamed,) = trace.verdict["blamed"]
    step = "at step 7 (the others at step 6)" if fault == "skip" else "at step 6"
    assert step in blamed["evidence"], trace
    first = job.trace("--incident", 1)
    assert (first.verdict["kind"], first.verdict["ranks"]) == ("missing", [0]), first
