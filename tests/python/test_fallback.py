"""Without the adapter: what Python can see is recorded, and what it misses is said."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")

NO_ADAPTER = """
import fr
from fr import adapter
def _refuse(torch):
    raise adapter.AdapterError("no compiler today")
adapter._at_hand = _refuse
"""


@pytest.mark.parametrize("value", ["0", "1"])
def test_samples_are_missed(launch, value):
    (run,) = launch(
        NO_ADAPTER
        + """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
status = fr.status()
result([status.get("samples"), status["python"]["problems"][1:]])
""",
        env={"FR_FINGERPRINT": value},
    )
    line = "FR_FINGERPRINT: nothing is sampled without the torch adapter"
    assert run.result == [None, [line] if value == "1" else []]


def test_fallback(launch):
    ran = launch(
        NO_ADAPTER
        + """
import torch, torch.distributed as dist
isend, irecv = dist.isend, dist.irecv
dist.init_process_group("gloo")
r, n = dist.get_rank(), dist.get_world_size()
t = torch.ones(4, 3)
both = [torch.empty(4, 3) for _ in range(n)]
def user():
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
user()
dist.broadcast(t, src=1)
dist.barrier()
dist.all_gather(both, t)
dist.all_gather_into_tensor(torch.empty(8, 3), t)
dist.reduce_scatter_tensor(torch.empty(2, 3), t)
dist.all_to_all_single(torch.empty(4, 3), t)
dist.gather(t, both if r == 0 else None, dst=0)
for w in dist.batch_isend_irecv([dist.P2POp(isend, t, 1 - r), dist.P2POp(irecv, t, 1 - r)]):
    w.wait()
if r == 0:
    dist.send(t, 1)
else:
    assert dist.recv(t) == 0
work = dist.all_reduce(t, async_op=True)
assert isinstance(work, dist.Work)
work.wait()
objects = [None] * n
dist.all_gather_object(objects, r)
assert objects == [0, 1]
try:
    dist.all_gather_into_tensor(torch.empty(2), torch.ones(3))
except Exception:
    pass
with torch.inference_mode():
    dist.all_reduce(t)
result([done(), fr.status()])
dist.destroy_process_group()
""",
        n=2,
    )
    for rank, r in enumerate(ran):
        records, status = r.result
        assert "no compiler today" in r.err
        assert r.err.count("no torch adapter") == 1
        assert any("no compiler today" in p for p in status["python"]["problems"])
        assert "missed" in status["layers"]["torch"]
        # Python tells of the exception that the script swallows from 3.12 on.
        assert [x["kind"] for x in records].count("note") == (sys.version_info >= (3, 12))
        records = [x for x in records if x["kind"] not in ("lifecycle", "note")]
        collectives = [x for x in records if x["kind"] == "collective"]
        assert [x["op"] for x in collectives] == [
            "all_reduce",
            "broadcast",
            "barrier",
            "all_gather",
            "all_gather_into_tensor",
            "reduce_scatter_tensor",
            "all_to_all_single",
            "gather",
            "all_reduce",
            "all_gather",
            "all_gather",
            "all_gather_into_tensor",
            "all_reduce",
        ]
        assert [x["seq"] for x in collectives] == list(range(1, 14))
        first = collectives[0]
        assert (first["reduce_op"], first["in_dtype"]) == ("MAX", "Float")
        assert (first["in_sizes"], first["out_sizes"]) == ([[4, 3]], [[4, 3]])
        assert any(f[2] == "user" for f in first["stack"])
        assert collectives[1]["peer"] == 1
        assert collectives[3]["out_sizes"] == [[4, 3], [4, 3]]
        assert collectives[8]["flags"] & 1  # asynchronous
        assert collectives[11]["state"] == "failed"
        assert all(x["state"] == "completed" for x in collectives[:11])
        p2p = [x["kind"] for x in records if x["kind"] != "collective"]
        assert p2p == ["send", "recv", "send" if rank == 0 else "recv"]
        assert all(x["group_name"] == "0" for x in records)


FIRST_RUN = """
import os, pathlib, time
import torch, torch.distributed as dist
import fr
from fr import adapter
cache = pathlib.Path("cache")

def left(ending):
    while not (found := list(cache.glob("*" + ending))):
        time.sleep(0.01)
    return found[0]

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
problems = fr.status()["python"]["problems"]
"""


def slow_compiler(shell):
    return f"""
import os
with open("slow", "w") as out:
    out.write("#!/bin/sh\\n" {shell!r} "\\n")
os.chmod("slow", 0o755)
os.environ["CXX"] = os.path.abspath("slow")
"""


def test_a_job_does_not_wait_for_the_compiler(launch):
    """The compiler ends only after the operation was recorded; the next run takes what it made."""
    (ran,) = launch(
        slow_compiler(
            "while ! [ -e go ]; do sleep 0.01; done\n"
            'while [ "$1" != -o ]; do shift; done; cp /bin/sh "$2"'
        )
        + FIRST_RUN
        + """
open("go", "w").close()
built = left(".so")
late = adapter._at_hand(torch)
adapter._process_start = lambda: time.time() + 1
taken = adapter._at_hand(torch) == built.resolve()
result([[r["op"] for r in done() if r["kind"] == "collective"], problems, late, taken])
""",
        env={"FR_CACHE_DIR": "cache"},
    )
    ops, problems, late, taken = ran.result
    assert ops == ["all_reduce"]
    assert any("being built for the next run" in p for p in problems)
    assert late is None  # another rank of the node may have begun before it was there
    assert taken


def test_a_compiler_that_fails(launch):
    (ran,) = launch(
        FIRST_RUN
        + """
left(".failed")
try:
    adapter.load()
except adapter.AdapterError as problem:
    again = str(problem)
result([[r["op"] for r in done() if r["kind"] == "collective"], problems, again])
""",
        env={"CXX": "false", "FR_CACHE_DIR": "cache"},
    )
    ops, problems, again = ran.result
    assert ops == ["all_reduce"]
    assert any("no torch adapter" in p for p in problems)
    assert "building it failed" in again
    assert not list((ran.dir / "cache").glob("*.so"))
    assert not list((ran.dir / "cache").glob("*.tmp"))


def test_one_rank_of_a_node_builds(launch):
    """The compiler of one is slow and fails; the others do not try again."""
    ran = launch(
        slow_compiler("echo ran >> compiled; exit 1")
        + FIRST_RUN
        + """
left(".failed")
result(problems)
dist.destroy_process_group()  # without it torch itself aborts now and then
""",
        n=2,
        env={"FR_CACHE_DIR": "cache"},
    )
    assert all(any("no torch adapter" in p for p in r.result) for r in ran)
    assert len((ran[0].dir / "compiled").read_text().split()) == 2  # c++17, c++20; once


def test_an_unusable_library_in_the_cache(launch):
    (ran,) = launch(
        """
        import torch, torch.distributed as dist
        import fr
        from fr import adapter
        path = adapter._build_dir() / f"adapter-{adapter._tag(torch)}.so"
        path.write_bytes(open(fr._fr.__file__, "rb").read())  # a library, but no adapter
        adapter._built_here = path
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        result([[r["op"] for r in done() if r["kind"] == "collective"], fr.status()])
        """,
        env={"FR_CACHE_DIR": "cache"},
    )
    ops, status = ran.result
    assert ops == ["all_reduce"]
    assert any("loading it failed" in p for p in status["python"]["problems"])
