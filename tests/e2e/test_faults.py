"""Rows of the fault table (tests/faults) that nothing else tests; `make test-faults` tries all."""

import subprocess
import sys
from pathlib import Path

ROWS = [
    "SIGKILL all, 1 s into a hang",
    "the same, dumps by the next attempt",
    "descriptors used up",
    "chroot",
    "second crash, after one survived by longjmp",
    "SIGSTOP for 4 s: a stall that passes",
    "clock - 1 hour",
    "clock - 1 day, SIGKILL",
]


def test_rows_of_the_fault_table():
    script = Path(__file__).parents[1] / "faults" / "run.py"
    got = subprocess.run(
        [sys.executable, script, "--jobs", "1", *ROWS], capture_output=True, text=True, timeout=300
    )
    assert got.returncode == 0, got.stdout + got.stderr
    assert "0 wrong" in got.stdout, got.stdout
