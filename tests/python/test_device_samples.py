"""FR_FINGERPRINT on devices, without one: tensors of gloo's ranks on the CPU go the device's way,
and what was enqueued arrives when a test says so (fr_torch_release)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("adapter_built")

PRELUDE = """
import ctypes, os, time
import torch, torch.distributed as dist
import fr
from fr import _fr, adapter
torch.set_num_threads(1)
dist.init_process_group("gloo")
lib = adapter._library
HELD, AT_ONCE = 1, 2
def samples():
    out = (ctypes.c_uint64 * 3)()
    lib.fr_torch_samples(out)
    return dict(zip(("recorded", "missed", "waiting"), out))
def until(**wanted):
    for _ in range(3000):
        if samples() == wanted:
            break
        time.sleep(0.01)
    return samples()
def kinds():
    return [r["kind"] for r in _fr.records() if r["kind"] in ("sample", "collective")]
def sides():
    import msgpack, zstandard
    with open(fr.dump(), "rb") as file:
        dump = msgpack.unpackb(zstandard.ZstdDecompressor().stream_reader(file).read())
    f = {name: i for i, name in enumerate(dump["records"]["fields"])}
    return [row for row in dump["records"]["rows"] if row and row[f["kind"]] == "sample"], f
x = torch.ones(100)
"""
FINGERPRINT = {"FR_FINGERPRINT": "1"}


def test_samples_arrive_late_and_in_order(launch):
    (run,) = launch(
        PRELUDE
        + """
lib.fr_torch_rehearse(HELD)
for n in range(3):
    fr.step(n)
    dist.all_reduce(x)
issued = [samples(), kinds()]
lib.fr_torch_release(1)
one = until(recorded=1, missed=0, waiting=5)
path = fr.dump()  # while five are on their way
lib.fr_torch_release(5)
rest = until(recorded=6, missed=0, waiting=0)  # nothing else is issued: the watchdog sees them
records = [r for r in _fr.records() if r["kind"] == "sample"]
ops = [r for r in _fr.records() if r["op"] == "all_reduce" and r["kind"] == "collective"]
result([issued, one, rest, [r["seq"] for r in records], [r["seq"] for r in ops],
        [bool(r["stack"]) for r in records], bool(path)])
""",
        n=1,
        env=FINGERPRINT,
    )
    issued, one, rest, seqs, ops, stacks, dumped = run.result
    assert issued == [{"recorded": 0, "missed": 0, "waiting": 6}, ["collective"] * 3]
    assert one == {"recorded": 1, "missed": 0, "waiting": 5} and dumped
    assert rest == {"recorded": 6, "missed": 0, "waiting": 0}
    assert seqs == [seq for seq in ops for _ in range(2)]
    assert (
        stacks == [True, False] * 3
    )  # an input's is that of its operation, an output's is not kept


# Ten operations have an input and an output each; eight samples find room, the other twelve do not.
def test_more_than_there_is_room_for(launch):
    (run,) = launch(
        PRELUDE
        + """
lib.fr_torch_rehearse(HELD)
for _ in range(10):
    dist.all_reduce(x)
full = samples()
lib.fr_torch_release(100)
rest = until(recorded=8, missed=12, waiting=0)
for _ in range(2):
    dist.all_reduce(x)
    lib.fr_torch_release(100)
until(recorded=12, missed=12, waiting=0)
status = fr.status()
result([full, rest, status["samples"], status["layers"]["samples"]])
""",
        n=1,
        env=FINGERPRINT,
    )
    full, rest, after, said = run.result
    assert full == {"recorded": 0, "missed": 0, "waiting": 8}
    assert rest == {"recorded": 8, "missed": 12, "waiting": 0}
    assert after == {"recorded": 12, "missed": 12, "waiting": 0}
    assert "more were on their way" in said
    assert run.err.count("samples on a device are missed") == 1


ENDS = {
    "wait": "work.wait()",
    "future": "work.get_future().wait()",
    "both": "work.get_future().wait(); work.wait(); work.wait()",
    "polled": "\nwhile not work.is_completed(): pass\nwork.wait()",
    "synchronize": "work.wait(); work.synchronize()",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_output_is_taken_once_the_caller_has_it(launch, end):
    (run,) = launch(
        PRELUDE
        + f"""
lib.fr_torch_rehearse(AT_ONCE)
work = dist.all_reduce(x, async_op=True)
before = until(recorded=1, missed=0, waiting=0)
{ENDS[end]}
result([before, until(recorded=2, missed=0, waiting=0)])
""",
        n=1,
        env=FINGERPRINT,
    )
    assert run.result[1] == {"recorded": 2, "missed": 0, "waiting": 0}


def test_an_operation_that_nobody_waits_for_and_a_tensor_that_cannot_be_read(launch):
    (run,) = launch(
        PRELUDE
        + """
lib.fr_torch_rehearse(AT_ONCE)
work = dist.all_reduce(x, async_op=True)
while not work.is_completed(): pass
del work
dropped = until(recorded=1, missed=1, waiting=0)
try:
    dist.all_reduce(torch.zeros(4097, 4096).T)
except Exception:
    pass  # gloo wants its tensors contiguous
result([dropped, until(recorded=1, missed=3, waiting=0)])
""",
        n=1,
        env=FINGERPRINT,
    )
    dropped, after = run.result
    assert dropped == {"recorded": 1, "missed": 1, "waiting": 0}
    assert after == {"recorded": 1, "missed": 3, "waiting": 0}
    assert "did not wait" in run.err and "cannot be read" in run.err


def test_a_forked_child_begins_anew(launch):
    (run,) = launch(
        PRELUDE
        + """
lib.fr_torch_rehearse(HELD)
for _ in range(10):
    dist.all_reduce(x)
pid = os.fork()
if pid == 0:
    from fr import _fr
    _fr.start()
    found = samples()
    os._exit(0 if found == {"recorded": 0, "missed": 0, "waiting": 0} else 1)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
lib.fr_torch_release(100)
result([code, until(recorded=8, missed=12, waiting=0)])
""",
        n=1,
        env=FINGERPRINT,
    )
    assert run.result == [0, {"recorded": 8, "missed": 12, "waiting": 0}]


def test_without_the_option_nothing_is_sampled(launch):
    (run,) = launch(
        PRELUDE
        + """
lib.fr_torch_rehearse(AT_ONCE)
dist.all_reduce(x)
result([samples(), "samples" in fr.status()])
""",
        n=1,
    )
    assert run.result == [{"recorded": 0, "missed": 0, "waiting": 0}, False]


def test_what_the_cpu_cannot_read_is_missed_too(launch):
    (run,) = launch(
        PRELUDE
        + """
before = fr.status()["samples"]
dist.all_reduce(x)
dist.all_reduce(torch.eye(3).to_sparse())
work = dist.all_reduce(x, async_op=True)
del work
result([before, fr.status()["samples"]])
""",
        n=1,
        env=FINGERPRINT,
    )
    assert run.result == [
        {"recorded": 0, "missed": 0, "waiting": 0},
        {"recorded": 3, "missed": 3, "waiting": 0},
    ]


def test_many_threads(launch):
    """Each with a group of its own; what is recorded and missed is all there is."""
    (run,) = launch(
        PRELUDE
        + """
import threading
lib.fr_torch_rehearse(AT_ONCE)
groups = [dist.new_group([0]) for _ in range(4)]
def issue(group):
    y = torch.ones(1000)
    for _ in range(200):
        dist.all_reduce(y, group=group)
threads = [threading.Thread(target=issue, args=(g,)) for g in groups]
for t in threads: t.start()
for t in threads: t.join()
for _ in range(1000):
    found = samples()
    if found["waiting"] == 0:
        break
    time.sleep(0.01)
result(found)
""",
        n=1,
        env=FINGERPRINT,
    )
    assert run.result["recorded"] + run.result["missed"] <= 1600
    assert run.result["recorded"] > 100
