"""frtrace on the labelled dump sets of this folder: never `ok` on a hang, and no more false blame
than stated."""

import pathlib
import shutil
import sys

import pytest

from .generate import generate
from .score import score, table

# Figures of the engine that this test was written against; lower them when the engine gets better.
FALSE_BLAME = {"a": 1, "b": 2}
SEED = {"a": 13, "b": 14}


def frtrace():
    beside = pathlib.Path(sys.executable).parent / "frtrace"
    program = str(beside) if beside.exists() else shutil.which("frtrace")
    if program is None:
        pytest.skip("frtrace is not installed")
    return program


@pytest.mark.parametrize("which", ["a", "b"])
def test_labelled_sets(which, tmp_path):
    folders = list(generate(which, SEED[which], 60, tmp_path))
    assert len(folders) == 60
    counts, failures = score(frtrace(), folders)
    said = "\n".join([table(counts), *map(str, failures)])
    assert counts["all"]["missed"] == 0, said
    assert not any("crashed" in f["got"] for f in failures), said
    assert counts["all"]["false_blame"] <= FALSE_BLAME[which], said
