"""Builds and loads the torch adapter: a small library compiled against the installed torch.

A wheel brings adapters for some releases of torch. Another one is built once per torch and source,
kept in FR_CACHE_DIR, and shared by all ranks of a machine: the first process builds under a file
lock, which the kernel releases if that process dies. A job never waits for a compiler: if there is
no adapter when a rank starts, a process of low priority builds it for the next run (build_later).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import grp
import hashlib
import json
import os
import pwd
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from . import _fr

_HERE = Path(__file__).resolve().parent
_WAIT_S = 180
_AGAIN_S = 3600  # a failed build is not tried again for so long

_library: ctypes.CDLL | None = None
_built_here: Path | None = None  # by this process


class AdapterError(RuntimeError):
    """Why there is no adapter, in one line."""


def _source() -> Path:
    return _HERE / "adapter" / "torch_adapter.cpp"


def _header_dir() -> Path:
    for place in (_HERE / "include", _HERE.parents[1] / "libfr" / "include"):
        if (place / "fr" / "fr.h").exists():
            return place
    raise AdapterError("fr/fr.h is not installed beside the package")


def _torch_paths(torch) -> tuple[list[str], str]:
    root = Path(torch.__file__).resolve().parent
    includes = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include"]
    if not includes[0].is_dir():
        raise AdapterError(f"torch {torch.__version__} came without its headers")
    return [str(i) for i in includes], str(root / "lib")


def _tag(torch, version: str = "") -> str:
    """What a built adapter depends on."""
    digest = hashlib.sha256()
    for part in sorted(_source().parent.glob("*.?pp")):
        digest.update(part.read_bytes())
    digest.update((_header_dir() / "fr" / "fr.h").read_bytes())
    digest.update(str(_abi(torch)).encode())
    digest.update(str(torch.version.git_version).encode())
    return f"{version or torch.__version__}-{digest.hexdigest()[:12]}"


def _packaged_name(torch) -> str:
    """Name of an adapter in a wheel, which serves all builds of a release, for CPU and CUDA."""
    return f"adapter-{_tag(torch, torch.__version__.split('+')[0])}.so"


def _abi(torch) -> int:
    return int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))


def _is_private_group(gid: int) -> bool:
    """The user's own group of one, as many systems make for each user."""
    try:
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and not group.gr_mem


def _distrust(path: Path) -> str | None:
    """Why another user could have put `path` there, or could change it; None: nobody else could.

    The training process loads this library. So each directory, link and file on the way must belong
    to this user or to root and be writable by nobody else; a sticky directory such as /tmp may be
    passed through.
    """
    at, links = Path("/"), 0
    todo = list(reversed(Path(os.path.abspath(path)).parts[1:]))
    while todo:
        part = todo.pop()
        here = at.parent if part == ".." else at / part
        try:
            found = os.lstat(here)
        except OSError as problem:
            return f"{here}: {problem.strerror}"
        if found.st_uid not in (os.getuid(), 0):
            return f"{here} belongs to another user"
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > 40:
                return f"{path}: too many symbolic links"
            target = Path(os.readlink(here))
            at = Path("/") if target.is_absolute() else at
            todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            continue
        others = stat.S_IWOTH if _is_private_group(found.st_gid) else stat.S_IWOTH | stat.S_IWGRP
        passed = bool(todo) and stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_mode & others and not passed:
            return f"{here} can be written to by other users"
        at = here
    return None


def _places() -> list[Path]:
    """FR_CACHE_DIR, then a temporary directory of this user's."""
    places = [Path(_fr.option("FR_CACHE_DIR") or "~/.cache/fr")]
    with contextlib.suppress(OSError):  # no temporary directory can be written to
        places.append(Path(tempfile.gettempdir()) / f"fr-cache-{os.getuid()}")
    with contextlib.suppress(RuntimeError):  # no HOME, and no such user
        places[0] = places[0].expanduser()
    return places


def _is_whole(path: Path) -> bool:
    """Whether the file reaches the end of its section headers. The loader does not check this, and
    a truncated library raises SIGBUS."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if len(head) == 64:
        (at,), (each, n) = struct.unpack_from("Q", head, 0x28), struct.unpack_from("HH", head, 0x3A)
        if 64 <= at <= size - each * n:
            return True
    _fr.log(1, f"{path} is cut short and not used")
    return False


def _packaged(torch) -> Path | None:
    """The adapter in this wheel. It needs no check: a user who can change it can change fr, too."""
    path = _HERE / "adapters" / _packaged_name(torch)
    return path if path.is_file() and _is_whole(path) else None


def _find(name: str) -> Path | None:
    """A library of that name that was built before, also where this user cannot write."""
    for place in _places():
        path = place / name
        if path.is_file() and _distrust(path) is None and _is_whole(path):
            return path
    return None


def _build_dir() -> Path:
    """The first place that can be written to, by this user alone."""
    refused = []
    for place in _places():
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as problem:
            refused.append(f"{place}: {problem.strerror}")
            continue
        why = _distrust(place)
        if why is None and os.access(place, os.W_OK):
            return place
        refused.append(why or f"{place} is read-only")
    raise AdapterError(f"no directory to build in: {'; '.join(refused)}")


def _command(torch, compiler: str, standard: str, output: str) -> list[str]:
    includes, lib_dir = _torch_paths(torch)

    def text(header: str) -> str:
        path = Path(includes[0]) / header
        return path.read_text(errors="replace") if path.exists() else ""

    work = text("torch/csrc/distributed/c10d/Work.hpp")
    asked = "getBackendOptions" in text("torch/csrc/distributed/c10d/Backend.hpp")
    captures = "isStreamCapturing" in text("c10/core/impl/VirtualGuardImpl.h")
    layout = text("c10/core/TensorImpl.h")
    members = (" sizes_and_strides_;", " data_type_;", " device_opt_;")
    members += (" has_symbolic_sizes_strides_ :",)
    return [
        compiler,
        str(_source()),
        "-o",
        output,
        "-shared",
        "-fPIC",
        "-O2",
        f"-std={standard}",
        "-fvisibility=hidden",
        "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={_abi(torch)}",
        *(f"-DFR_WORK_HAS_{m}" for m in ("getFutureResult", "blockCurrentStream") if m in work),
        *(["-DFR_BACKEND_HAS_getBackendOptions"] if asked else []),
        *(["-DFR_GUARD_HAS_isStreamCapturing"] if captures else []),
        *(["-DFR_TENSOR_LAYOUT"] if all(m in layout for m in members) else []),
        "-I",
        str(_header_dir()),
        *(flag for i in includes for flag in ("-isystem", i)),
        f"-L{lib_dir}",
        "-ltorch_cpu",
        "-lc10",
    ]


def _compiler() -> str:
    for compiler in (os.environ.get("CXX"), "c++", "g++"):
        if compiler and shutil.which(compiler.split()[0]) is not None:
            return compiler
    raise AdapterError("no C++ compiler (c++, g++ or $CXX)")


def _compile(torch, target: Path) -> None:
    compiler = _compiler()
    building = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    error = ""
    try:
        # A newer torch may need a newer C++ standard.
        for standard in ("c++17", "c++20"):
            command = _command(torch, compiler, standard, str(building))
            command[:1] = compiler.split()
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_WAIT_S, check=False
            )
            if done.returncode == 0:
                with open(building, "rb") as file:  # or a node that fails leaves zeros
                    os.fsync(file.fileno())
                os.replace(building, target)
                return
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            error = (lines or done.stderr.splitlines() or ["no message"])[0]
    except (OSError, subprocess.SubprocessError) as problem:
        error = str(problem)
    finally:
        building.unlink(missing_ok=True)
    raise AdapterError(f"building it failed: {error}")


def build(torch, wait: bool = True) -> Path:
    """Path of the adapter for this torch, built when it is not there yet. Raises AdapterError.
    wait: for another process that builds it."""
    global _built_here
    if (built := _packaged(torch)) is not None:
        return built
    name = f"adapter-{_tag(torch)}.so"
    if (built := _find(name)) is not None:
        return built
    target = _build_dir() / name
    if (why := _distrust(target) if os.path.lexists(target) else None) is not None:
        raise AdapterError(f"the library there is not used: {why}")
    failed = target.with_suffix(".failed")
    lock = os.open(target.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _WAIT_S
        began = time.time()
        said = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if not wait or time.monotonic() > deadline:
                    raise AdapterError(
                        f"another process has been building it for {_WAIT_S if wait else 0} s"
                    ) from None
                if not said:
                    said = True
                    _fr.log(2, "waiting for another rank to build the torch adapter")
                time.sleep(0.1)
        if _find(name) == target:
            return target
        if not wait:  # another process may have held the lock and failed before this one got it
            _ask_last_failure(torch)
        # The process that held the lock meanwhile has failed for all waiting processes.
        if said and failed.exists() and failed.stat().st_mtime >= began - 1:
            raise AdapterError(failed.read_text().strip())
        _fr.log(
            1,
            f"building the torch adapter for torch {torch.__version__}, once, about 15 s: {target}",
        )
        try:
            _compile(torch, target)
        except AdapterError as problem:
            with contextlib.suppress(OSError):
                told = target.with_name(f"{target.name}.{os.getpid()}.tmp")  # read by others
                told.write_text(str(problem))
                os.replace(told, failed)
            raise
        failed.unlink(missing_ok=True)
        _built_here = target
        return target
    finally:
        os.close(lock)


def _process_start() -> float:
    """Unix time at which this process began; the current time if /proc does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        since_boot = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        since_boot /= os.sysconf("SC_CLK_TCK")
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    return time.time()


def _at_hand(torch) -> Path | None:
    """An adapter that was there when this process began. The ranks of a node begin together: all of
    them take it, or none, and their records count the same operations."""
    if (path := _packaged(torch)) is not None:
        return path
    path = _find(f"adapter-{_tag(torch)}.so")
    if path is None or path == _built_here or path.stat().st_ctime < _process_start() + 0.05:
        return path
    return None


def _ask_last_failure(torch) -> None:
    """Raises AdapterError where building it failed a short while ago, or has no place."""
    failed = _build_dir() / f"adapter-{_tag(torch)}.failed"
    with contextlib.suppress(OSError):
        if time.time() - failed.stat().st_mtime < _AGAIN_S and _distrust(failed) is None:
            raise AdapterError(failed.read_text().strip())


def build_later(torch) -> str:
    """Starts a process of low priority, which outlives this one, to build the adapter; returns a
    text for status. Takes 0.1 s. Raises AdapterError if it cannot be built."""
    _compiler()
    _ask_last_failure(torch)
    about = [torch.__version__, torch.version.git_version, _abi(torch), torch.__file__]
    command = [sys.executable, "-m", "fr", "--build-adapter", json.dumps(about)]
    try:
        subprocess.run(
            command,
            env={**os.environ, "FR_ENABLE": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=10,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        raise AdapterError(f"building it failed: {problem}") from None
    return "it is being built for the next run; `python -m fr --build-adapter` builds it at once"


def _open(torch, path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        library.fr_torch_version.restype = ctypes.c_char_p
        version = library.fr_torch_version().decode()
    except (OSError, AttributeError) as problem:
        raise AdapterError(
            f"loading it failed, remove it to have it built anew: {problem}"
        ) from None
    if version.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise AdapterError(f"{path} was built for torch {version}")
    return library


def load() -> str:
    """Loads and installs the adapter; returns a text for status. Raises AdapterError."""
    global _library
    import torch

    if _library is None:
        path = _at_hand(torch)
        if path is None:
            raise AdapterError(build_later(torch))
        library = _open(torch, path)
        library.fr_torch_install.argtypes = [ctypes.c_void_p]
        library.fr_torch_install.restype = ctypes.c_char_p
        library.fr_torch_groups_changed.restype = None
        library.fr_torch_uninstall.restype = None
        library.fr_torch_join_nodes.argtypes = [ctypes.c_char_p, ctypes.c_int]
        library.fr_torch_join_nodes.restype = None
        library.fr_torch_tensor_reader.restype = ctypes.c_void_p
        library.fr_torch_samples.restype = ctypes.c_bool
        _library = library
    problem = _library.fr_torch_install(_fr.api_address())
    if problem is not None:
        raise AdapterError(problem.decode(errors="replace"))
    _read_tensors(torch)
    return (
        f"adapter for torch {torch.__version__}: {_library.fr_torch_hooked()} operators, "
        "not seen: backend methods called directly"
    )


def _read_tensors(torch) -> None:
    """Lets dumps show tensors among variables. Where a tensor's Python object keeps its TensorImpl
    is looked up in one."""
    reader = _library.fr_torch_tensor_reader()
    if not reader:
        return
    tensor = torch.empty(0)
    head = (ctypes.c_uint64 * (tensor.__class__.__basicsize__ // 8)).from_address(id(tensor))
    where = [i * 8 for i, word in enumerate(head) if word == tensor._cdata]
    if where:
        _fr.set_tensor_reader(torch._C.TensorBase, where[0], reader)


def samples() -> dict[str, int] | None:
    """Counts of FR_FINGERPRINT's samples; None if it is off."""
    counts = (ctypes.c_uint64 * 3)()
    if _library is None or not _library.fr_torch_samples(counts):
        return None
    return dict(zip(("recorded", "missed", "waiting"), counts, strict=True))


def groups_changed() -> None:
    if _library is not None:
        _library.fr_torch_groups_changed()


def join_nodes(host: str, port: int) -> None:
    """The nodes of the job find each other through torch's store there; returns at once."""
    if _library is not None:
        _library.fr_torch_join_nodes(host.encode(), port)


def uninstall() -> None:
    if _library is not None:
        _library.fr_torch_uninstall()


def _build_in_background(about: str) -> int:
    """The process of build_later(): leaves a child that builds, unless another process does."""
    version, git, abi, file = json.loads(about)
    torch = SimpleNamespace(__version__=version, __file__=file)
    torch.version = SimpleNamespace(git_version=git)
    torch._C = SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=abi)
    if os.fork() == 0:
        os.nice(19)
        with contextlib.suppress(AdapterError):
            build(torch, wait=False)
        os._exit(0)
    return 0


def main(about: str = "") -> int:
    """python -m fr --build-adapter"""
    if about:
        return _build_in_background(about)
    try:
        import torch
    except ImportError as problem:
        print(f"fr: torch cannot be imported: {problem}", file=sys.stderr)
        return 1
    try:
        print(build(torch))
    except AdapterError as problem:
        print(f"fr: no adapter: {problem}", file=sys.stderr)
        return 1
    return 0
