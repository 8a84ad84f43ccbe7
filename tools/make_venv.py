"""Makes the virtual environment that demo and tests run in.

    PYTHON tools/make_venv.py .venv [--borrow]

With --borrow, an interpreter that has torch already lends it: the new environment sees its packages
(a .pth file, which also works when the interpreter is itself a virtual environment's), and nothing
is installed into it. Otherwise torch is installed into the new environment.
"""

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

TORCH = ["torch==2.13.0", "numpy"]
TOOLS = ["pip>=23.1"]  # make install passes -C
TOOLS += ["scikit-build-core>=0.10", "pybind11>=2.13", "pytest>=7", "pytest-timeout"]
TOOLS += ["pytest-xdist", "py-spy"]  # what stacks are compared with
TOOLS += ["msgpack", "zstandard", "tabulate"]  # tests read dumps; torchfrtrace
TOOLS += ["perfetto", "protobuf", "pyyaml"]  # tests read traces and the Kubernetes example
CMAKE = (3, 25)


def lends_torch() -> str:
    """Version of the torch of this interpreter, empty when it has none with gloo."""
    code = (
        "import torch, torch.distributed as d;"
        "print(torch.__version__ if d.is_available() and d.is_gloo_available() else '')"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return got.stdout.strip() if got.returncode == 0 else ""


def old_cmake() -> bool:
    """Whether the system's CMake (or none) is too old, as on Ubuntu 22.04."""
    if not shutil.which("cmake"):
        return True
    text = subprocess.run(["cmake", "--version"], capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", text)
    return not found or tuple(map(int, found.groups())) < CMAKE


def main() -> None:
    where = Path(sys.argv[1])
    torch = lends_torch() if "--borrow" in sys.argv else ""
    print(f"venv: {where} from {sys.executable}" + (f", with its torch {torch}" if torch else ""))
    venv.create(where, with_pip=True, clear=True)
    python = where / "bin" / "python"
    packages = list(TOOLS)
    if torch:
        ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        own = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
        lent = [p for p in sys.path if p and Path(p).name in ("site-packages", "dist-packages")]
        (own / "borrowed.pth").write_text("".join(f"{p}\n" for p in lent))
    else:
        packages += TORCH
    if old_cmake():
        packages += [f"cmake>={CMAKE[0]}.{CMAKE[1]}", "ninja"]
    print(f"venv: installing {' '.join(packages)}", flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    subprocess.run([*pip, *packages], check=True)
    (where / ".made-by").write_text(sys.executable + "\n")


if __name__ == "__main__":
    main()
