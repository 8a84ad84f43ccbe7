"""Runs the adapters of a wheel against PyPI's builds of torch, whatever GPUs they were made for.

    .venv/bin/python tests/images/try_adapters.py build/dist/fr-*.whl 2.6.0 2.12.1 ...

Of each release, PyPI's wheel for this Python is unpacked. Nothing of CUDA is installed: each
library that torch needs and this machine has not is made here, of functions that return "no
device". With that, torch imports and runs on the CPU. Then three ranks of gloo hang (ranks.sh),
with the fr of the wheel; a release passes when frtrace names the rank and the wheel's adapter was
in use.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLATFORMS = ("manylinux1", "manylinux2014", "manylinux_2_28")
NO_DEVICE = 100  # cudaErrorNoDevice; of most other libraries, some error


def run(*command, **kwargs) -> str:
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, **kwargs)
    return done.stdout


def unpack(release: str, to: Path) -> None:
    options = [f"--platform={p}_{os.uname().machine}" for p in PLATFORMS]
    options += ["--only-binary=:all:", "--no-deps", "-d", to]
    pip = (sys.executable, "-m", "pip", "-q", "download")
    subprocess.run([*pip, *options, f"torch=={release}"], check=True)
    (wheel,) = to.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        unused = ("torch/include/", "torch/test/")
        files.extractall(to, [n for n in files.namelist() if not n.startswith(unused)])
    wheel.unlink()
    for program in (to / "torch" / "bin").iterdir():
        program.chmod(0o755)


def stand_in(torch: Path, to: Path) -> list[str]:
    """Makes what torch's libraries need and is not here; returns their names."""
    to.mkdir()
    libraries = [p for p in torch.parent.rglob("*.so*") if p.is_file()]
    here = {p.name for p in libraries} | set(
        re.findall(r"^\s+(\S+) \(", run("ldconfig", "-p"), re.M)
    )
    missing, asked, defined = set(), set(), set()
    of_version = {}
    for library in libraries:
        missing |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-dW", library))) - here
        for kind, name in re.findall(r"^[0-9a-f ]{16} (\w) (\S+)", run("nm", "-D", library), re.M):
            (asked if kind in "Uwv" else defined).add(name)
        needs = run("readelf", "-VW", library)
        for file, versions in re.findall(r"File: (\S+)(.*?)(?=File: |\Z)", needs, re.S):
            of_version |= dict.fromkeys(re.findall(r"Name: (\S+)", versions), file)
    functions = defaultdict(set)
    for symbol in asked:
        name, _, version = symbol.partition("@")
        if name in defined:
            continue
        if version:
            functions[of_version.get(version.strip("@"))].add((name, version.strip("@")))
        elif re.match(r"_*(cu|nccl|nvtx|nvrtc|nvshmem|nvJit)", name):
            functions["any"].add((name, ""))
    for number, library in enumerate(sorted(missing)):
        own = functions[library] | (functions["any"] if number == 0 else set())
        code = "".join(f"long {name}(void) {{ return {NO_DEVICE}; }}\n" for name, _ in sorted(own))
        (to / "code.c").write_text(code or "int nothing;\n")
        names = defaultdict(list)
        for name, version in sorted(own):
            names[version].append(name)
        versions = {v for v, file in of_version.items() if file == library}
        text = "".join(
            f"{v} {{ global: {''.join(n + ';' for n in names[v])} }};\n" for v in sorted(versions)
        )
        (to / "code.map").write_text(text)
        options = ("-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{library}")
        options += (f"-Wl,--version-script={to / 'code.map'}",) if versions else ()
        subprocess.run(["cc", *options, "-o", to / library, to / "code.c"], check=True)
    return sorted(missing)


def attempt(wheel: Path, release: str, folder: Path) -> str:
    unpack(release, folder / "torch")
    stand_in(folder / "torch" / "torch", folder / "cuda")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder / "fr")
    (folder / "bin").mkdir()
    frtrace = next((folder / "fr").rglob("scripts/frtrace"))
    frtrace.chmod(0o755)
    shutil.copy2(frtrace, folder / "bin")
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    shutil.copytree(HERE.parents[1] / "examples", folder / "examples")
    env = {k: v for k, v in os.environ.items() if not k.startswith("FR_")}
    env |= {"LD_LIBRARY_PATH": str(folder / "cuda"), "PYTHONWARNINGS": "ignore"}
    env |= {"PYTHONPATH": f"{folder / 'torch'}:{folder / 'fr'}", "FR_SHM_DIR": str(folder)}
    first = run(python, HERE / "first.py", cwd=folder, env=env)
    layer = re.search(r"adapter for torch ([^:]+): (\d+) operators", first)
    said = run("sh", HERE / "ranks.sh", python, "skip", cwd=folder, env=env)
    verdict = re.search(r"^MISSING +(rank 2 never issued all_reduce #45)", said, re.M)
    if not layer or not verdict:
        return f"{release}: FAILED: {first} {said}"
    return f"{release}: adapter for {layer[1]}, {layer[2]} operators; {verdict[1]}"


def main() -> int:
    wheel, *releases = sys.argv[1:]
    failed = False
    for release in releases:
        with tempfile.TemporaryDirectory() as folder:
            line = attempt(Path(wheel), release, Path(folder))
        failed |= "FAILED" in line
        print(line, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
