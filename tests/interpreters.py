"""Python versions that tests run their processes in: the fixture `interpreter`."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
BUILD = Path(__file__).resolve().parent.parent / "build" / "dev"


@dataclass
class Interpreter:
    executable: str
    env: dict = field(default_factory=dict)


OWN = Interpreter(sys.executable)


@pytest.fixture(scope="session", params=VERSIONS)
def interpreter(request):
    """Each CPython of this machine that has headers, with fr built for it in build/dev; of this
    one's version, this one with the fr that is installed."""
    version = request.param
    if version == "{}.{}".format(*sys.version_info):
        return OWN
    where = BUILD / "tests" / "versions" / version
    if not (BUILD / "CMakeCache.txt").exists():
        pytest.skip("build/dev is not configured: cmake --preset dev")
    if not (where / "python").exists():
        pytest.skip(f"build/dev found no python{version} with headers, or no pybind11")
    command = ["cmake", "--build", str(BUILD), "--target", f"fr_python_{version}"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    path = os.pathsep.join(filter(None, [str(where), os.environ.get("PYTHONPATH")]))
    return Interpreter((where / "python").read_text(), {"PYTHONPATH": path})
