"""Makes the source package and the wheels of fr, and a static frtrace.

    python tools/make_wheels.py [--out dist] [--arch ARCH] [--python PYTHON]... [--torch TORCH]...
    python tools/make_wheels.py --static [--target x86_64-linux-musl]
    python tools/make_wheels.py --sdist

All of it is built in build/wheel/, from the files that git knows. PyPI's ziglang compiles: its
headers and stubs of glibc 2.28 make wheels that run on every Linux of manylinux_2_28, whatever this
machine has, and its libc++ is linked statically, so a wheel needs nothing beyond glibc.

The source package brings what else is needed to build it without network and without packages:
the headers of msgpack-c, fmt, CLI11 and nlohmann-json as this machine has them (Debian's packages,
tools/setup.sh installs them), and zstd as one file, from PyPI's source package of `zstandard`.

--torch names an interpreter that has torch, a wheel of torch, or a release of it on PyPI; only the
files that an adapter is compiled against are kept. The adapter for that torch goes into every
wheel, and serves that release's builds for CPU and for CUDA. This machine's C++ compiler compiles
it (for --arch, g++-aarch64-linux-gnu), since it shares libstdc++ with torch; its symbol versions
are checked.

--arch: wheels for another processor. Only the version and the headers of an interpreter are used.
"""

from __future__ import annotations

import argparse
import os
import platform
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
NEWEST = {"GLIBC": GLIBC, "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}  # the latter of GCC 8
PLATFORM = "manylinux_2_28"
HEADERS = ("msgpack.hpp", "msgpack", "fmt", "CLI", "nlohmann")
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")
RELEASE = r"\d+\.\d+\.\d+"
TORCH_PARTS = r"torch/(include/|version\.py|share/cmake/Torch/|lib/lib(torch_cpu|c10)\.so)"
TOOLS = ("ziglang>=0.13", "scikit-build-core>=0.10", "pybind11>=2.13", "auditwheel", "wheel")
TOOLS += ("cmake>=3.25", "ninja", "packaging")
TOOLS += ("tomli", "exceptiongroup", "typing-extensions")  # of scikit-build-core on Python 3.10


def run(*command, **kwargs) -> str:
    done = subprocess.run(
        [str(part) for part in command], text=True, stdout=subprocess.PIPE, **kwargs
    )
    if done.returncode != 0:
        last = "\n".join(done.stdout.split("\n")[-40:])
        raise SystemExit(f"make_wheels: failed: {' '.join(map(str, command))[:600]}\n{last}")
    return done.stdout


def tools() -> Path:
    """An interpreter with TOOLS."""
    python = WORK / "venv" / "bin" / "python"
    installed = WORK / "venv" / "installed"
    if not installed.exists() or installed.read_text() != str(TOOLS):
        run(sys.executable, "-m", "venv", WORK / "venv")
        run(python, "-m", "pip", "-q", "install", *TOOLS)
        installed.write_text(str(TOOLS))
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


def unnamed(path: Path) -> list[str]:
    """Symbols that a library needs of no version: Python's, libfr's, or ones that the stubs of the
    old glibc have not, which the linker lets a module need."""
    asked = re.findall(r"^ +U (\w+)$", run("nm", "-D", path), flags=re.M)
    return [name for name in asked if not re.match(r"_?Py|fr_", name)]


# Compiles the adapter for an interpreter's torch, or for a wheel's, which it unpacks into a folder.
ADAPTER = """
import os, re, subprocess, sys, types, zipfile
wheel, where, parts, tree, out, compiler, *more = sys.argv[1:]
sys.path.insert(0, os.path.join(tree, "python"))
sys.modules["fr"] = package = types.ModuleType("fr")  # without its extension module
package.__path__ = [os.path.join(tree, "python", "fr")]
sys.modules["fr._fr"] = package._fr = types.ModuleType("fr._fr")
from fr import adapter
if wheel:
    files = zipfile.ZipFile(wheel)
    read = lambda name: files.read(name).decode()
    exec(read("torch/version.py"), said := {})
    config = read("torch/share/cmake/Torch/TorchConfig.cmake")
    abi = re.search(r"_GLIBCXX_USE_CXX11_ABI=(\\d)", config)
    torch = types.SimpleNamespace(__file__=os.path.join(where, "torch", "__init__.py"))
    torch.__version__, torch.version = said["__version__"], types.SimpleNamespace(**said)
    torch._C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=int(abi[1]) if abi else 1)
else:
    import torch
to = os.path.join(out, adapter._packaged_name(torch))
if wheel and not os.path.exists(to):
    files.extractall(where, [name for name in files.namelist() if re.match(parts, name)])
for standard in ("c++17", "c++20"):  # of which a newer torch may need the newer
    if not os.path.exists(to):
        command = [*adapter._command(torch, compiler, standard, to), *more]
        said = subprocess.run(command, capture_output=True, text=True).stderr
if not os.path.exists(to):
    raise SystemExit(said[:4000])
print(to)
"""

# Symbols that this machine's headers of libc and libstdc++ need and that manylinux_2_28 lacks: a
# variable of glibc 2.32 (0: there are threads), two functions that glibc 2.34 moved to another
# library under a new version, functions that GCC 11 and 12 made inline in terms of new ones, and a
# constructor of the older std::string, which GCC 9 added.
OLD_SYSTEM = """
extern "C" {
#define FR_HIDDEN [[gnu::visibility("hidden")]]
FR_HIDDEN char __libc_single_threaded = 0;

#ifdef __x86_64__
#define FR_OLDEST "GLIBC_2.2.5"
#else
#define FR_OLDEST "GLIBC_2.17"
#endif
__asm__(".symver pthread_once, pthread_once@" FR_OLDEST);
__asm__(".symver pthread_mutex_trylock, pthread_mutex_trylock@" FR_OLDEST);

#define FR_POINTER "_ZNSt15__exception_ptr13exception_ptr"
void fr_copy_pointer(void* to, const void* from) __asm__(FR_POINTER "C1ERKS0_");
void fr_destroy_pointer(void* pointer) __asm__(FR_POINTER "D1Ev");
FR_HIDDEN void fr_add_reference(void* pointer) __asm__(FR_POINTER "9_M_addrefEv");
FR_HIDDEN void fr_release(void* pointer) __asm__(FR_POINTER "10_M_releaseEv");
void fr_add_reference(void* pointer) {
  void* copy;  // never destroyed
  fr_copy_pointer(&copy, pointer);
}
void fr_release(void* pointer) { fr_destroy_pointer(pointer); }

struct FrView {
  unsigned long bytes;
  const char* text;
};
void fr_string(void* to, const char* text, unsigned long bytes, const void* allocator)
    __asm__("_ZNSsC1EPKcmRKSaIcE");
FR_HIDDEN void fr_string_of_view(void* to, FrView view, const void* allocator)
    __asm__("_ZNSsC1ENSs12__sv_wrapperERKSaIcE");
void fr_string_of_view(void* to, FrView view, const void* allocator) {
  fr_string(to, view.text, view.bytes, allocator);
}

[[noreturn]] void __cxa_throw_bad_array_new_length();
FR_HIDDEN void fr_throw_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void fr_throw_length() { __cxa_throw_bad_array_new_length(); }
}
"""


def fetch_torch(version: str, arch: str, python: Path) -> str:
    """PyPI's wheel of a release of torch without the files that no adapter needs: without CUDA."""
    kept = WORK / f"torch-{arch}" / f"torch-{version}.whl"
    if kept.exists():
        return str(kept)
    kept.parent.mkdir(exist_ok=True)
    asked = ["--python-version=3.11", "--only-binary=:all:", "--no-deps"]
    asked += [f"--platform={p}_{arch}" for p in ("manylinux1", "manylinux2014", PLATFORM)]
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        run(python, "-m", "pip", "-q", "download", *asked, "-d", folder, f"torch=={version}")
        (whole,) = Path(folder).glob("*.whl")
        part = Path(folder) / "part"
        with (
            zipfile.ZipFile(whole) as files,
            zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as to,
        ):
            for name in files.namelist():
                if re.match(TORCH_PARTS, name):
                    to.writestr(name, files.read(name))
        part.rename(kept)
    return str(kept)


def make_adapter(torch: str, arch: str) -> Path:
    """The adapter for `torch`, under the name by which fr.adapter looks for it."""
    out = WORK / f"adapters-{arch}"
    out.mkdir(exist_ok=True)
    (WORK / "old_system.hpp").write_text(OLD_SYSTEM)
    compiler = "c++" if arch == platform.machine() else f"{arch}-linux-gnu-g++"
    with tempfile.TemporaryDirectory() as folder:
        python, wheel = (sys.executable, torch) if torch.endswith(".whl") else (torch, "")
        command = (os.environ.get("CXX") or compiler, "-include", WORK / "old_system.hpp", "-s")
        command += ("-Wl,-z,defs",)  # it may need only libraries that torch and the system have
        given = (wheel, folder, TORCH_PARTS, TREE, out)
        path = Path(run(python, "-c", ADAPTER, *given, *command).strip().split("\n")[-1])
    has = needed(path)
    if any(has.get(kind, ()) > newest for kind, newest in NEWEST.items()):
        raise SystemExit(f"make_wheels: the adapter {path.name} needs {has}")
    return path


def make_wheel(python: str, venv: Path, out: Path, arch: str, adapters: list[Path]) -> Path:
    """A wheel for `python`. libfr and frtrace are built once, for the first one."""
    built = WORK / "raw"
    shutil.rmtree(built, ignore_errors=True)
    env = dict(os.environ, FR_ZIG=zig(venv))
    for name in ("CC", "CXX", "CMAKE_CXX_COMPILER_LAUNCHER"):
        env.pop(name, None)
    site = run(venv, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    env["PYTHONPATH"] = site
    env["PATH"] = f"{venv.parent}{os.pathsep}{env['PATH']}"
    tree, cross = WORK / "cmake", {}
    if arch != platform.machine():
        tree = WORK / f"cmake-{arch}"
        version = run(python, "-c", "import sys; print('%d%d' % sys.version_info[:2])").strip()
        cross = {"cmake.define.PYTHON_MODULE_EXTENSION": f".cpython-{version}-{arch}-linux-gnu.so"}
    options = {
        "build-dir": tree,
        "cmake.args": "--toolchain=tools/cmake/zig.cmake",
        "cmake.define.FR_TARGET": f"{arch}-linux-gnu." + ".".join(map(str, GLIBC)),
        "cmake.define.FR_LIBDW": "OFF",
        "build.targets": "fr;frtrace;_fr",
        "install.strip": "false",
        **cross,
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
    tagged = f"{PLATFORM}_{arch}"
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
                if (lacking := unnamed(path)) and "adapters/" not in name:
                    raise SystemExit(f"make_wheels: {name} needs {', '.join(lacking)}")
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


def interpreter(name: str) -> str | None:
    """Path of the interpreter, if it runs: a shim of pyenv may lead nowhere."""
    path = shutil.which(name)
    ask = [path, "-c", "import sysconfig; open(sysconfig.get_path('include') + '/Python.h')"]
    if path and subprocess.run(ask, capture_output=True).returncode == 0:
        return os.path.abspath(path)
    return None


def named(name: str) -> str:
    if name.endswith(".whl") and os.path.isfile(name):
        return os.path.abspath(name)
    if path := interpreter(name):
        return path
    raise argparse.ArgumentTypeError(f"no interpreter with headers: {name}")


def named_torch(name: str) -> str:
    return name if re.fullmatch(RELEASE, name) else named(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "dist")
    more = {"action": "append", "type": named, "default": []}
    parser.add_argument("--python", **more, help="for these; default: all")
    more["type"] = named_torch
    parser.add_argument("--torch", **more, help="an adapter for its torch")
    parser.add_argument("--arch", default=platform.machine())
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
    adapters = []
    for torch in a.torch:
        if re.fullmatch(RELEASE, torch):
            torch = fetch_torch(torch, a.arch, venv)
        adapters.append(make_adapter(torch, a.arch))
    for python in a.python or filter(None, map(interpreter, PYTHONS)):
        print(verify(venv, make_wheel(python, venv, out, a.arch, adapters)), flush=True)


if __name__ == "__main__":
    main()
