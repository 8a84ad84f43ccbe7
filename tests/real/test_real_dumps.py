"""frtrace on PyTorch's dumps of real jobs with several groups (make_real_dumps.py, keep.py)."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

DATA = pathlib.Path(__file__).parents[1] / "data" / "real"


def verdict_of(where):
    beside = pathlib.Path(sys.executable).parent / "frtrace"
    program = str(beside) if beside.exists() else shutil.which("frtrace")
    if program is None:
        pytest.skip("frtrace is not installed")
    dumps = sorted(where.glob("trace_rank_*"))
    done = subprocess.run([program, "--json", *dumps], capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)["verdict"]


@pytest.mark.parametrize("case", sorted(p.name for p in DATA.iterdir()))
def test_verdict(case):
    truth = json.loads((DATA / case / "truth.json").read_text())
    verdict = verdict_of(DATA / case)
    allowed = [(kind, sorted(ranks)) for kind, ranks in truth["accept"]]
    assert (verdict["kind"], sorted(verdict["ranks"])) in allowed, verdict["summary"]
