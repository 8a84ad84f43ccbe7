"""The fuzzer of whole directories: a short run on the installed frtrace, and that it can count."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("cli.py")
FRTRACE = Path(sys.executable).parent / "frtrace"
CERTAIN = """{"verdict": {"kind": "missing", "ranks": [99], "confidence": "certain"}}"""
OTHERS = """case "$*" in *fr-fuzz-*) ;; *) exit 0;; esac"""  # of the sound set it says nothing
BROKEN = {  # counter: a frtrace in which it counts
    "crashes": "kill -SEGV $$",
    "crashes, by a sanitizer": "echo '==1==ERROR: AddressSanitizer: heap' >&2; exit 1",
    "crashes, by undefined behaviour": "echo 'a.cpp:1:2: runtime error: shift' >&2; exit 1",
    "hangs": "exec sleep 60",
    "memory": f"exec {sys.executable} -c 'x = bytes(range(80)) * (1 << 20)'",
    "no JSON": "echo not a report; exit 1",
    "wrong certain": f"{OTHERS}; echo '{CERTAIN}'; exit 1",
}


def fuzz(frtrace, *options):
    command = [sys.executable, SCRIPT, "--frtrace", frtrace, "--seed", "3", *map(str, options)]
    got = subprocess.run(command, capture_output=True, text=True, timeout=200)
    counts = dict(re.findall(r"(crashes|hangs|memory|no JSON|wrong certain) (\d+)", got.stdout))
    return got.returncode, {name: int(n) for name, n in counts.items()}, got.stdout + got.stderr


def test_damaged_directories():
    status, counts, said = fuzz(FRTRACE, "--runs", 400, "--seconds", 20)
    assert len(counts) == 5, said
    assert status == 0, said


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_frtrace_is_counted(how, tmp_path):
    broken = tmp_path / "frtrace"
    broken.write_text(f"#!/bin/sh\n{BROKEN[how]}\n")
    broken.chmod(0o700)
    limits = ("--longest", 0.5 if how == "hangs" else 10, "--most-mib", 60)
    status, counts, said = fuzz(broken, "--runs", 6, *limits)
    assert status == 1, said
    assert counts[how.split(",")[0]] > 0, said
