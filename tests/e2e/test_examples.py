"""The examples and the demo do what their first comments say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import frtrace

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(script, scratch, *args):
    base = {k: v for k, v in os.environ.items() if not k.startswith("FR_")}
    base |= {"FR_SHM_DIR": str(scratch / "shm"), "FR_DUMP_DIR": str(scratch / "dumps")}
    command = [sys.executable, str(script), *args]
    return subprocess.run(
        command, env=base, cwd=scratch, capture_output=True, text=True, timeout=200
    )


@pytest.mark.parametrize(
    "name", ["04_manual_api", "05_snapshot", "06_notes_and_spans", "07_writer"]
)
def test_example_of_one_process(scratch, name):
    got = run(EXAMPLES / f"{name}.py", scratch)
    assert got.returncode == 0, got.stderr
    assert got.stdout


def test_tutorial(launch, scratch):
    """Options set in the script under PyTorch's names count."""
    env = {"FR_DUMP_DIR": "", "TORCH_FR_DUMP_TEMP_FILE": str(scratch / "dumps" / "trace_")}
    script = EXAMPLES / "02_tutorial_extra_all_reduce.py"
    job = launch(None, 4, torchrun=True, script=script, env=env)
    trace = job.await_verdict("mismatch", 11).expect("mismatch", [0], op="all_reduce")
    assert trace.verdict["waiting"][0]["site"]["function"] == "extra_all_reduce"


def test_subgroup(launch):
    job = launch(None, 4, torchrun=True, script=EXAMPLES / "03_subgroup_skip.py")
    trace = job.await_verdict("missing", 5, desc="experts")
    trace.expect("missing", [3], op="all_reduce", desc="experts")
    assert "average_experts" in [w["site"]["function"] for w in trace.verdict["waiting"]]


@pytest.mark.parametrize("fault", ["skip", "kill", "size", "none"])
def test_demo(scratch, fault):
    """DDP and torchrun. The demo's own exit status tells whether frtrace's was as expected."""
    got = run(ROOT / "tools" / "demo.py", scratch, fault)
    assert got.returncode == 0, got.stdout + got.stderr
    trace = frtrace(ROOT / "fr-dumps" / f"demo-{fault}")
    if fault != "none":
        assert trace.verdict["ranks"] == [2], trace
