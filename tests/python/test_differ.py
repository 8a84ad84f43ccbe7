"""The second opinion of tests/differ, on dumps that can be worked out by hand."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "differ"))
import checker  # noqa: E402

ALL = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}


def collective(seq, op="all_reduce", size=4, done=True):
    return {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "profiling_name": f"nccl:{op}",
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
    }


def message(text, seq, done):
    return collective(0, text, done=done) | {"is_p2p": True, "p2p_seq_id": seq}


DONE = [collective(1), collective(2)]
STUCK = [*DONE, collective(3, done=False)]
CASES = {
    "all ended": ([DONE, DONE, DONE], "ok", []),
    "one issued nothing": ([STUCK, DONE, STUCK], "missing", [1]),
    "one differs": (
        [STUCK, STUCK, [*DONE, collective(3, size=8, done=False)]], "mismatch", [2],
    ),
    "one left no file": ([STUCK, STUCK, None], "exited", [2]),
    "all are there": ([STUCK, STUCK, STUCK], "undecided", []),
    "receives in a circle": (
        [[message("recv 0<-1", 1, False)], [message("recv 1<-0", 1, False)], []],
        "deadlock", [0, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_opinion(name, tmp_path):
    ranks, kind, who = CASES[name]
    for rank, entries in enumerate(ranks):
        if entries is not None:
            dump = {"version": "2.10", "pg_config": ALL, "entries": entries}
            (tmp_path / f"trace_rank_{rank}").write_text(json.dumps(dump))
    opinion = checker.opinion_of(tmp_path)
    assert (opinion.kind, opinion.ranks) == (kind, who), opinion
