"""Makes the source package and the wheels of fr, and a static frtrace.

    python tools/make_wheels.py [--out dist] [--python PYTHON]... [--torch PYTHON]...
    python tools/make_wheels.py --static [--target x86_64-linux-musl]
    python tools/make_wheels.py --sdist

All of it is built in build/wheel/, from the files that git knows. PyPI's ziglang compiles: its
headers and stubs of glibc 2.28 make wheels that run on every Linux of manylinux_2_28, whatever this
machine has, and its libc++ is linked statically, so a wheel needs nothing beyond glibc.

The source package brings what else is needed to build it without network and without packages:
the headers of msgpack-c, fmt, CLI11 and nlohmann-json as this machine has them (Debian's packages,
tools/setup.sh installs them), and zstd as one file, from PyPI's source package of `zstandard`.

--torch names an interpreter that has torch: the adapter for that torch goes into every wheel. It is
compiled by this machine's C++ compiler, since it shares libstdc++ with torch; which symbol versions
it needs is checked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheel"
TREE = WORK / "tree"
GLIBC = (2, 28)
GLIBCXX = (3, 4, 25)  # of GCC 8, which manylinux_2_28 has
PLATFORM = "manylinux_2_28"
HEADERS = ("msgpack.hpp", "msgpack", "fmt", "CLI", "nlohmann")
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")
TOOLS = ("ziglang>=0.13", "scikit-build-core>=0.10", "pybind11>=2.13", "auditwheel", "wheel")
TOOLS += ("cmake>=3.25", "ninja", "packaging")
TOOLS += ("tomli", "exceptiongroup", "typing-extensions")  # of scikit-build-core on Python 3.10


def run(*command, **kwargs) -> str:
    done = subprocess.run(
        [str(part) for part in command], text=True, stdout=subprocess.PIPE, **kwargs
    )
    if done.returncode != 0:
        raise SystemExit(f"make_wheels: failed: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def tools() -> Path:
    """An interpreter with TOOLS."""
    python = WORK / "venv" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", WORK / "venv")
        run(python, "-m", "pip", "-q", "install", *TOOLS)
    return python


def zig(python: Path) -> str:
    code = "import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
    return run(python, "-c", code).strip()


def system_headers() -> Path:
    for place in (Path("/usr/include"), Path("/usr/local/include")):
        if all((place / name).exists() for name in HEADERS):
            return place
    raise SystemExit("make_wheels: no headers of msgpack, fmt, CLI11, json: tools/setup.sh")


def vendor(python: Path) -> None:
    """Puts the libraries that the build needs into the tree, as third_party/."""
    to = TREE / "third_party.new"
    shutil.rmtree(to, ignore_errors=True)
    include = to / "include"
    include.mkdir(parents=True)
    for name in HEADERS:
        source = system_headers() / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, include / name)
    with tempfile.TemporaryDirectory() as folder:
        wanted = ("--no-deps", "--no-binary=zstandard", "-d", folder)
        run(python, "-m", "pip", "-q", "download", *wanted, "zstandard")
        (archive,) = Path(folder).glob("zstandard-*.tar.gz")
        with tarfile.open(archive) as tar:
            for member in tar:
                if re.fullmatch(r"[^/]+/zstd/(zstd\.[ch]|zstd_errors\.h|LICENSE)", member.name):
                    (to / "zstd").mkdir(exist_ok=True)
                    content = tar.extractfile(member)
                    (to / "zstd" / Path(member.name).name).write_bytes(content.read())
    to.rename(TREE / "third_party")


def make_tree(python: Path) -> None:
    """The files of git and third_party/, in build/wheel/tree. Files keep their times."""
    fresh = WORK / "tree.new"
    shutil.rmtree(fresh, ignore_errors=True)
    names = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).split("\n")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, fresh / name)
    if (TREE / "third_party").exists():
        (TREE / "third_party").rename(fresh / "third_party")
    shutil.rmtree(TREE, ignore_errors=True)
    fresh.rename(TREE)
    if not (TREE / "third_party").exists():
        vendor(python)
    commit = run("git", "rev-parse", "--short=9", "HEAD", cwd=ROOT)
    (TREE / "third_party" / "commit").write_text(commit)


def make_sdist(python: Path, out: Path) -> Path:
    code = "import sys, scikit_build_core.build as b; print(b.build_sdist(sys.argv[1]))"
    name = run(python, "-c", code, out, cwd=TREE).strip().split("\n")[-1]
    return out / name


def needed(path: Path) -> dict[str, tuple[int, ...]]:
    """Newest version of each kind of symbol that a library or program needs."""
    newest: dict[str, tuple[int, ...]] = {}
    for kind, version in re.findall(
        r"\b(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)", run("objdump", "-T", path)
    ):
        number = tuple(map(int, version.split(".")))
        newest[kind] = max(newest.get(kind, ()), number)
    return newest


def make_adapter(python: str, out: Path) -> Path:
    """The adapter for the torch of `python`, under the name by which fr.adapter looks for it."""
    code = f"""
import os, subprocess, sys, types
sys.path.insert(0, {str(TREE / "python")!r})
sys.modules["fr"] = package = types.ModuleType("fr")  # without its extension module
package.__path__ = [{str(TREE / "python" / "fr")!r}]
sys.modules["fr._fr"] = types.ModuleType("fr._fr")
package._fr = sys.modules["fr._fr"]
import torch
from fr import adapter
to = os.path.join({str(out)!r}, adapter._packaged_name(torch))
command = adapter._command(torch, os.environ.get("CXX") or "c++", "c++17", to)
source = {str(WORK / "old_glibc.cpp")!r}
subprocess.run([*command, source, "-s"], check=True)
print(to)
"""
    # A variable of glibc 2.32 that libstdc++'s headers ask; here it says "there are threads".
    old_glibc = 'extern "C" {\n[[gnu::visibility("hidden")]] char __libc_single_threaded = 0;\n}\n'
    (WORK / "old_glibc.cpp").write_text(old_glibc)
    path = Path(run(python, "-c", code, cwd=WORK).strip().split("\n")[-1])
    has = needed(path)
    if has.get("GLIBC", ()) > GLIBC or has.get("GLIBCXX", ()) > GLIBCXX:
        raise SystemExit(f"make_wheels: the adapter {path.name} needs {has}")
    return path


def make_wheel(python: str, venv: Path, out: Path, adapters: list[Path]) -> Path:
    """A wheel for `python`. libfr and frtrace are built once, for the first one."""
    built = WORK / "raw"
    shutil.rmtree(built, ignore_errors=True)
    env = dict(os.environ, FR_ZIG=zig(venv))
    for name in ("CC", "CXX", "CMAKE_CXX_COMPILER_LAUNCHER"):
        env.pop(name, None)
    site = run(venv, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    env["PYTHONPATH"] = site
    env["PATH"] = f"{venv.parent}{os.pathsep}{env['PATH']}"
    options = {
        "build-dir": WORK / "cmake",
        "cmake.args": "--toolchain=tools/cmake/zig.cmake",
        "cmake.define.FR_TARGET": "x86_64-linux-gnu." + ".".join(map(str, GLIBC)),
        "cmake.define.FR_LIBDW": "OFF",
        "build.targets": "fr;frtrace;_fr",
        "install.strip": "false",
    }
    code = (
        "import sys, scikit_build_core.build as b\n"
        "settings = dict(a.split('=', 1) for a in sys.argv[2:])\n"
        "b.build_wheel(sys.argv[1], settings)"
    )
    run(python, "-c", code, built, *(f"{k}={v}" for k, v in options.items()), cwd=TREE, env=env)
    (raw,) = built.glob("*.whl")
    files = zipfile.ZipFile(raw)
    with tempfile.TemporaryDirectory() as folder:
        files.extractall(folder)
        unpacked = Path(folder)
        for adapter in adapters:
            (unpacked / "fr" / "adapters").mkdir(exist_ok=True)
            shutil.copy2(adapter, unpacked / "fr" / "adapters")
        for path in unpacked.rglob("*"):
            if path.parent.name == "scripts" or path.suffix == ".so":
                path.chmod(0o755)
        run(venv, "-m", "wheel", "pack", "-d", built, unpacked)
    tagged = f"{PLATFORM}_x86_64"
    run(venv, "-m", "wheel", "tags", "--remove", "--platform-tag", tagged, raw)
    (done,) = built.glob(f"*{tagged}.whl")
    shutil.copy2(done, out / done.name)
    return out / done.name


def verify(venv: Path, wheel: Path) -> str:
    """One line of what a wheel needs and holds; ends where it needs more than it says."""
    audit = run(venv, "-m", "auditwheel", "show", wheel, stderr=subprocess.STDOUT)
    text = " ".join(audit.split())
    # It knows no libtorch_cpu.so, which the adapter needs, and says what the symbols allow.
    allowed = re.search(r'platform tag(?: to|:) "manylinux_2_(\d+)_', text)
    if not allowed or int(allowed[1]) > GLIBC[1]:
        raise SystemExit(f"make_wheels: {wheel.name}: {text}")
    names = zipfile.ZipFile(wheel).namelist()
    adapters = [Path(n).name for n in names if n.startswith("fr/adapters/")]
    newest: dict[str, tuple[int, ...]] = {}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for name in names:
            data = archive.read(name)
            if data[:4] == b"\x7fELF":
                path = Path(folder) / "elf"
                path.write_bytes(data)
                for kind, version in needed(path).items():
                    newest[kind] = max(newest.get(kind, ()), version)
    glibc = ".".join(map(str, newest["GLIBC"]))
    size = wheel.stat().st_size / 1e6
    return f"{wheel.name}: {size:.1f} MB, glibc {glibc}, adapters: {', '.join(adapters) or 'none'}"


def make_static(venv: Path, out: Path, target: str) -> Path:
    folder = WORK / f"static-{target}"
    env = dict(os.environ, FR_ZIG=zig(venv))
    env["PATH"] = f"{venv.parent}{os.pathsep}{env['PATH']}"
    options = ("-DCMAKE_BUILD_TYPE=Release", "-DFR_LIBDW=OFF", f"-DFR_TARGET={target}")
    toolchain = ("--toolchain", "tools/cmake/zig.cmake", "-DFR_UNITY=ON")
    run("cmake", "-S", ".", "-B", folder, "-G", "Ninja", *toolchain, *options, cwd=TREE, env=env)
    run("cmake", "--build", folder, "--target", "frtrace", env=env)
    name = "frtrace" if target == "x86_64-linux-musl" else f"frtrace-{target.split('-')[0]}"
    shutil.copy2(folder / "tools" / "frtrace" / "frtrace", out / name)
    return out / name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "dist")
    parser.add_argument("--python", action="append", default=[], help="for these; default: all")
    parser.add_argument("--torch", action="append", default=[], help="an adapter for its torch")
    parser.add_argument("--sdist", action="store_true", help="the source package only")
    parser.add_argument("--static", action="store_true", help="a static frtrace only")
    parser.add_argument("--target", default="x86_64-linux-musl")
    a = parser.parse_args()
    out = a.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    venv = tools()
    make_tree(venv)
    if a.static:
        path = make_static(venv, out, a.target)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
        return
    print(make_sdist(venv, out))
    if a.sdist:
        return
    adapters = [make_adapter(python, WORK) for python in a.torch]
    for python in a.python or [p for p in PYTHONS if shutil.which(p)]:
        print(verify(venv, make_wheel(python, venv, out, adapters)), flush=True)


if __name__ == "__main__":
    main()
