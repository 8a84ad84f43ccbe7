"""Exceptions that the user's code caught and left behind are said of the rank at fault."""

import signal
import subprocess

import interpreters
import msgpack
import one_process
import pytest
import zstandard

interpreter = interpreters.interpreter
native_lib = one_process.native_lib
start = one_process.start

SCRIPT = """
from pathlib import Path
group = fr.group("0", ranks=1, own_rank=0)
def load(shard):
    raise OSError(f"no such shard: {shard}, password=hunter2secret")
def fetch():
    try:
        load(7)
    except OSError:
        pass
def search():
    for n in range(10_000):  # one note, not ten thousand
        try:
            {}[n]
        except KeyError:
            pass
search()
fetch()
try:
    Path("/nowhere").stat()
except FileNotFoundError:
    pass
[n for n in iter([1, 2])]
next(iter([]), None)
def operations():
    for _ in range(3):
        fr.end(fr.begin(group, "all_reduce", sizes=[4]))
"""


@pytest.fixture(autouse=True)
def monitored(interpreter):
    ask = [interpreter.executable, "-c", "import sys; sys.exit(not hasattr(sys, 'monitoring'))"]
    if subprocess.run(ask).returncode != 0:
        pytest.skip("before Python 3.12 nothing tells")


def notes(process):
    """All texts of the dump that tell of a caught exception, in the order of the ring."""
    data = zstandard.ZstdDecompressor().decompressobj().decompress(process.dumps()[-1].read_bytes())
    found = []

    def walk(value):
        if isinstance(value, str) and value.startswith("caught ") and value not in found:
            found.append(value)
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, (dict, list, str)) and part != value:
                walk(part)

    walk(msgpack.unpackb(data, strict_map_key=False))
    return found


def test_the_last_one_with_its_place_and_how_long_before(start):
    p = start(SCRIPT + "operations()\nos.abort()\n")
    assert p.process.wait(timeout=45) == -signal.SIGABRT, p.log.read_text()
    lines = p.read()["verdict"]["blamed"][0]["evidence"]
    (caught,) = [line for line in lines if line.startswith("caught")]
    # of the standard library's frames none is named
    assert caught.startswith("caught FileNotFoundError at target.py:"), lines
    assert " in <module>: [Errno 2] No such file" in caught, lines
    assert caught.endswith(" before its last operation"), lines
    assert not any(line.startswith("last note") for line in lines), lines
    found = notes(p)
    assert [n.split()[1] for n in found] == ["KeyError", "OSError", "FileNotFoundError"], found
    assert "in load: no such shard: 7" in found[1] and "hunter2" not in found[1], found


def test_a_script_without_operations_is_told_too(start):
    p = start(SCRIPT + "os.abort()\n")
    assert p.process.wait(timeout=45) == -signal.SIGABRT, p.log.read_text()
    assert any(
        "caught FileNotFoundError" in e for e in p.read()["verdict"]["blamed"][0]["evidence"]
    )
