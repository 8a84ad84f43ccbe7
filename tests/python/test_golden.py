"""Files of earlier formats (tests/data/golden, one directory per version) keep their verdicts.

Real ranks wrote them (make_golden.py). A change of the format adds a directory; those that are
there stay as they are, so that this frtrace is known to read what any earlier fr wrote.
"""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

zstandard = pytest.importorskip("zstandard")

GOLDEN = pathlib.Path(__file__).parents[1] / "data" / "golden"
EXPECTED = {
    (version.name, case, what): verdict
    for version in sorted(GOLDEN.glob("v*"))
    for case, kinds in json.loads((version / "expected.json").read_text()).items()
    for what, verdict in kinds.items()
}


def frtrace_program():
    beside = pathlib.Path(sys.executable).parent / "frtrace"
    found = str(beside) if beside.exists() else shutil.which("frtrace")
    if found is None:
        pytest.skip("frtrace is not installed")
    return found


def unpacked(where, what, to):
    """The dumps as they are, or the rings out of their zstd frames."""
    if what == "dumps":
        return sorted(where.glob("*.fr"))
    for packed in sorted(where.glob("*.ring.zst")):
        data = zstandard.ZstdDecompressor().decompressobj().decompress(packed.read_bytes())
        (to / packed.stem).write_bytes(data)
    return sorted(to.iterdir())


def test_every_case_is_named():
    for version in GOLDEN.glob("v*"):
        cases = {p.name for p in version.iterdir() if p.is_dir()}
        assert cases == {case for v, case, _ in EXPECTED if v == version.name}


@pytest.mark.parametrize("version,case,what", sorted(EXPECTED))
def test_verdict(version, case, what, tmp_path):
    files = unpacked(GOLDEN / version / case, what, tmp_path)
    assert files
    done = subprocess.run(
        [frtrace_program(), "--json", *files], capture_output=True, text=True, timeout=60
    )
    report = json.loads(done.stdout)
    assert report["input"]["read"] == len(files), report["input"]
    assert report["input"]["unreadable"] == []
    verdict = report["verdict"]
    got = {key: verdict[key] for key in ("kind", "ranks", "confidence")}
    assert got == EXPECTED[version, case, what], verdict["summary"]
