"""What is installed: find_package(fr), pkg-config, an ABI that only grows; the static frtrace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "dev"
KEPT = ROOT / "tests" / "data" / "libfr.abi"

pytestmark = pytest.mark.skipif(
    not (BUILD / "CMakeCache.txt").exists(), reason="no build/dev (make install makes it)"
)


def run(*command, **kwargs):
    return subprocess.run(
        [str(part) for part in command], check=True, text=True, capture_output=True, **kwargs
    ).stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    to = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--component", "devel", "--prefix", to)
    return to


def test_find_package(prefix, tmp_path):
    source = ROOT / "examples" / "find_package"
    run("cmake", "-S", source, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "b")
    own = {"FR_SHM_DIR": str(tmp_path), "FR_DUMP_DIR": str(tmp_path / "dumps"), "FR_JOB": "c"}
    said = run(tmp_path / "b" / "ring", env={**os.environ, **own}, cwd=tmp_path)
    assert "started 1" in said
    assert re.search(r"fr \d+\.\d+\.\d+", said)
    assert len(list((tmp_path / "dumps").glob("*.fr"))) == 1


def test_pkg_config(prefix, tmp_path):
    """Without pkg-config: what it would do with the file."""
    (pc,) = prefix.glob("lib*/**/pkgconfig/fr.pc")
    values = {"pcfiledir": str(pc.parent)}
    for line in pc.read_text().splitlines():
        if found := re.fullmatch(r"(\w+)(?:=|: )(.*)", line):
            values[found[1]] = re.sub(r"\$\{(\w+)\}", lambda m: values[m[1]], found[2])
    program = tmp_path / "ring"
    flags = f"{values['Cflags']} {values['Libs']}".split()
    run(
        "c++", "-x", "c", ROOT / "examples/find_package/ring.c", "-x", "none", "-o", program, *flags
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", values["Version"])


def abi(prefix, where) -> list[str]:
    """Exported functions, and size of each public struct with the offset of each member."""
    library = next(prefix.glob("lib*/**/libfr.so"))
    header = (prefix / "include/fr/fr.h").read_text()
    exported = run("nm", "-D", "--defined-only", library)
    lines = [f"function {name}" for name in re.findall(r" T ((?:fr|nccl)\w+)", exported)]
    lines += [f"data {name}" for name in re.findall(r" [DRVB] ((?:fr|nccl)\w+)", exported)]
    code = ["#include <fr/fr.h>", "#include <cstdio>", "#include <cstddef>", "int main() {"]
    plain = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    for name, body in re.findall(r"typedef struct (fr_\w+) \{(.*?)\}", plain, flags=re.S):
        code.append(f'std::printf("struct {name} %zu\\n", sizeof({name}));')
        for member in body.split(";"):
            if found := re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w*\])?\s*$", member.strip()):
                m = found[1] or found[2]
                code.append(f'std::printf("{name}.{m} %zu\\n", offsetof({name}, {m}));')
    (where / "sizes.cpp").write_text("\n".join([*code, "}"]))
    run("c++", "-I", prefix / "include", where / "sizes.cpp", "-o", where / "sizes")
    return lines + run(where / "sizes").splitlines()


def test_the_abi_only_grows(prefix, tmp_path):
    """A line of tests/data/libfr.abi is never removed or changed; FR_ABI_VERSION counts additions.

    FR_KEEP_ABI=1 writes the list anew, after an addition.
    """
    now = abi(prefix, tmp_path)
    header = (prefix / "include/fr/fr.h").read_text()
    version = re.search(r"#define FR_ABI_VERSION (\d+)", header)[1]
    text = "\n".join([f"FR_ABI_VERSION {version}", *now]) + "\n"
    if os.environ.get("FR_KEEP_ABI"):
        KEPT.write_text(text)
    kept = KEPT.read_text().splitlines()
    sizes = {line.rsplit(" ", 1)[0] for line in kept if line.startswith("struct ")}
    gone = [
        line
        for line in kept[1:]
        if line not in now and line.rsplit(" ", 1)[0] not in sizes  # a struct may grow at its end
    ]
    assert not gone
    added = [line for line in now if line not in kept]
    assert not added or kept[0] != f"FR_ABI_VERSION {version}", f"{added}: count FR_ABI_VERSION up"
    assert not added, "FR_KEEP_ABI=1 keeps them"


def test_an_adapter_for_wheels_needs_an_old_system(adapter_built):
    """What the adapter takes from a libc or libstdc++ younger than manylinux_2_28's, the adapters
    of a wheel bring with them: else `make wheel` ends."""
    sys.path.insert(0, str(ROOT / "tools"))
    import make_wheels

    adapter = run(sys.executable, "-m", "fr", "--build-adapter").split()[-1]
    needed = r"\((GLIBC|GLIBCXX|CXXABI)_([0-9.]+)\)\s+(\w+)$"
    symbols = re.findall(needed, run("objdump", "-T", adapter), flags=re.M)
    assert len(symbols) > 50
    newer = {
        name
        for kind, version, name in symbols
        if tuple(map(int, version.split("."))) > make_wheels.NEWEST[kind]
    }
    assert not [name for name in newer if not re.search(rf"\b{name}\b", make_wheels.OLD_SYSTEM)]


def test_static_frtrace(tmp_path):
    """One file, in a root that holds nothing else; it says what it cannot do."""
    program = ROOT / "build" / "dist" / "frtrace"
    if not program.exists():
        pytest.skip("no build/dist/frtrace (make static)")
    shutil.copy2(program, tmp_path / "frtrace")
    shutil.copytree(ROOT / "tests" / "data" / "golden" / "v1" / "skip", tmp_path / "skip")
    into = [shutil.which("chroot"), tmp_path] if os.geteuid() == 0 else ["env", "-C", tmp_path]
    done = subprocess.run(
        [*into, "./frtrace", "--stacks", "skip"], text=True, capture_output=True, env={}, timeout=60
    )
    assert "never issued all_reduce #3" in done.stdout
    assert re.search(r"libtorch_python.so\+0x[0-9a-f]+", done.stdout)
    assert "ranks 0-2: file+0x...: this frtrace has no libdw" in done.stdout
