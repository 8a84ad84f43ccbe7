"""Documents show what was run, link what exists, and fit into 100 columns."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("docs", ROOT / "tools/docs.py")
docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs)

DOCUMENTS = docs.documents()
names = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
each = pytest.mark.parametrize("path", DOCUMENTS, ids=names)


@each
def test_lines_fit(path):
    too_long = [
        f"{path.name}:{number}: {len(line)} columns"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > docs.COLUMNS
    ]
    assert not too_long


@each
def test_links_lead_to_files(path):
    missing = []
    text = path.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http", "#")):
            place = (path.parent / target.partition("#")[0]).resolve()
            missing += [] if place.exists() else [target]
    # Paths from the root in back quotes, too: `tests/bench/x.py`, `libfr/nccl`.
    for target in re.findall(
        r"`((?:libfr|python|tools|tests|examples)/[\w./-]+)`", path.read_text()
    ):
        missing += [] if (ROOT / target).exists() else [target]
    # and a test in one of them: `tests/unit/x.cpp::what its name begins with`
    for target, test in re.findall(r"`(tests/[\w./-]+)::([^`]+)`", path.read_text()):
        source = (ROOT / target).read_text()
        there = f"def {test}(" in source or re.search(rf'TEST_CASE\(\s*"{re.escape(test)}', source)
        missing += [] if there else [test]
    assert not missing


@each
def test_pasted_output_is_what_the_command_prints(path):
    old = path.read_text()
    assert docs.pasted(old, docs.is_stable) == old, "run `make docs`"


def test_every_begin_has_its_end():
    for path in DOCUMENTS:
        text = path.read_text()
        begun = len(re.findall(r"^<!-- run", text, re.MULTILINE))
        assert begun == len(docs.BLOCK.findall(text)), path


def test_a_block_that_differs_is_seen():
    document = "a\n<!-- run: frtrace --options -->\nsomething old\n<!-- end -->\nb\n"
    new = docs.pasted(document, docs.is_stable)
    assert "something old" not in new and "FR_TIMEOUT_S" in new
    assert new.startswith("a\n<!-- run") and new.endswith("<!-- end -->\nb\n")
    assert docs.pasted(new, docs.is_stable) == new


def test_the_map_of_libfr_is_short():
    assert len((ROOT / "libfr/README.md").read_text().split()) <= 1500


def test_ctest_runs_each_test():
    """It takes a name with a semicolon for two, runs neither and calls that passed."""
    cases = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("*.cpp")
        for name in re.findall(r'TEST_CASE\(\s*((?:"[^"]*"\s*)+)', path.read_text())
        if ";" in name
    ]
    assert not cases
