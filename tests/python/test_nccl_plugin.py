"""How NCCL is told of its profiler plugin, and what becomes of the user's own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import fr

SCRIPT = """
import ctypes, json, os, fr
from fr import _fr, nccl
seen = {k: os.environ.get(k) for k in ("NCCL_PROFILER_PLUGIN", "FR_NCCL_CHAIN")}
seen["path"] = _fr.library_path()
# as NCCL opens it
opened = ctypes.CDLL(seen["NCCL_PROFILER_PLUGIN"], mode=os.RTLD_NOW | os.RTLD_LOCAL) \
    if seen["NCCL_PROFILER_PLUGIN"] != "none" else None
own = ctypes.CDLL(seen["path"])
place = lambda lib: ctypes.addressof(ctypes.c_void_p.in_dll(lib, "ncclProfiler_v6"))
seen["same"] = opened is not None and place(opened) == place(own)
nccl.uninstall()
seen["after"] = [os.environ.get(k) for k in ("NCCL_PROFILER_PLUGIN", "FR_NCCL_CHAIN")]
print(json.dumps(seen))
"""


def clean():
    """The environment as it was before this process imported fr."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "NCCL_"))}


def run(tmp_path, **env):
    keep = clean()
    keep |= {"FR_SHM_DIR": str(tmp_path), "FR_DUMP_DIR": str(tmp_path / "dumps")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=keep | env, text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nobody_has_one(tmp_path):
    seen = run(tmp_path)
    assert seen["NCCL_PROFILER_PLUGIN"] == seen["path"]
    assert seen["FR_NCCL_CHAIN"] is None
    assert seen["same"]
    assert seen["after"] == [None, None]


def test_the_users_own_is_kept_for_calling_through(tmp_path):
    for theirs in ("/opt/profilers/libtheirs.so", "suffix", "STATIC_PLUGIN"):
        seen = run(tmp_path, NCCL_PROFILER_PLUGIN=theirs)
        assert seen["NCCL_PROFILER_PLUGIN"] == seen["path"]
        assert seen["FR_NCCL_CHAIN"] == theirs
        assert seen["after"] == [theirs, None]


def test_one_in_nccls_own_file_is_kept_for_calling_through(tmp_path):
    file = tmp_path / "nccl.conf"
    file.write_text("# of the cluster\nNCCL_DEBUG=WARN\nNCCL_PROFILER_PLUGIN=inspector\n")
    seen = run(tmp_path, NCCL_CONF_FILE=str(file))
    assert seen["NCCL_PROFILER_PLUGIN"] == seen["path"]
    assert seen["FR_NCCL_CHAIN"] == "inspector"
    seen = run(tmp_path, NCCL_CONF_FILE=str(file), NCCL_PROFILER_PLUGIN="mine")
    assert seen["FR_NCCL_CHAIN"] == "mine"


def test_none_stays_none(tmp_path):
    seen = run(tmp_path, NCCL_PROFILER_PLUGIN="none")
    assert seen["NCCL_PROFILER_PLUGIN"] == "none"
    assert seen["FR_NCCL_CHAIN"] is None


def test_a_child_inherits_what_its_parent_did(tmp_path):
    path = fr._fr.library_path()
    seen = run(tmp_path, NCCL_PROFILER_PLUGIN=path)
    assert seen["FR_NCCL_CHAIN"] is None
    seen = run(tmp_path, NCCL_PROFILER_PLUGIN=path, FR_NCCL_CHAIN="theirs")
    assert (seen["NCCL_PROFILER_PLUGIN"], seen["FR_NCCL_CHAIN"]) == (path, "theirs")


def test_a_path_longer_than_nccl_keeps(tmp_path):
    """Its buffer for the name has 255 bytes: then the name alone finds what is loaded already."""
    deep = tmp_path / ("x" * 120) / ("y" * 120) / ("z" * 60)
    deep.mkdir(parents=True)
    shutil.copytree(Path(fr.__file__).parent, deep / "fr")
    seen = run(tmp_path, PYTHONPATH=str(deep))
    assert seen["path"].startswith(str(deep)) and len(seen["path"]) > 255
    assert len(seen["NCCL_PROFILER_PLUGIN"]) < 255
    assert seen["same"]
    assert seen["after"] == [None, None]
    # and does not take itself for the user's
    seen = run(tmp_path, PYTHONPATH=str(deep), NCCL_PROFILER_PLUGIN=seen["NCCL_PROFILER_PLUGIN"])
    assert seen["FR_NCCL_CHAIN"] is None
    assert seen["same"]


def preloaded(tmp_path, **env):
    """The two variables as a program sees them that is started with LD_PRELOAD=libfr.so."""
    script = """
import ctypes, json
c = ctypes.CDLL(None)
c.getenv.restype = ctypes.c_char_p
seen = [c.getenv(name) for name in (b"NCCL_PROFILER_PLUGIN", b"FR_NCCL_CHAIN")]
print(json.dumps([value and value.decode() for value in seen]))
"""
    keep = clean() | {"FR_SHM_DIR": str(tmp_path), "LD_PRELOAD": fr._fr.library_path()}
    done = subprocess.run(
        [sys.executable, "-c", script], env=keep | env, text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def imported(tmp_path, **env):
    seen = run(tmp_path, **env)
    return [seen["NCCL_PROFILER_PLUGIN"], seen["FR_NCCL_CHAIN"]]


def test_preload_and_import_agree(tmp_path):
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_PROFILER_PLUGIN=inspector\n")
    own = fr._fr.library_path()
    for env, want in [
        ({}, [own, None]),
        ({"NCCL_PROFILER_PLUGIN": "mine"}, [own, "mine"]),
        ({"NCCL_PROFILER_PLUGIN": "none"}, ["none", None]),
        ({"NCCL_CONF_FILE": str(conf)}, [own, "inspector"]),
        ({"NCCL_PROFILER_PLUGIN": "", "NCCL_CONF_FILE": str(conf)}, [own, "inspector"]),
    ]:
        assert preloaded(tmp_path, **env) == want
        assert imported(tmp_path, **env) == want


def test_switched_off_both_leave_nccls_variable_alone(tmp_path):
    for off in ("0", "false", "No", "off", "f"):
        assert preloaded(tmp_path, FR_ENABLE=off) == [None, None]
        got = subprocess.run(
            [sys.executable, "-c", "import os, fr; print(os.environ.get('NCCL_PROFILER_PLUGIN'))"],
            env=clean() | {"FR_ENABLE": off}, text=True, capture_output=True, timeout=60,
        )  # fmt: skip
        assert got.stdout == "None\n", got.stderr


def test_preloaded_with_a_long_path(tmp_path):
    """LD_PRELOAD=libfr.so does the same."""
    deep = tmp_path / ("x" * 120) / ("y" * 120) / ("z" * 60)
    deep.mkdir(parents=True)
    library = shutil.copy(fr._fr.library_path(), deep / "libfr.so")
    script = """
import ctypes
c = ctypes.CDLL(None)
c.getenv.restype = ctypes.c_char_p
name = c.getenv(b"NCCL_PROFILER_PLUGIN")
print(name.decode(), ctypes.CDLL(name.decode()).fr_start is not None)
"""
    keep = clean()
    done = subprocess.run(
        [sys.executable, "-c", script], env=keep | {"LD_PRELOAD": str(library)},
        text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["libfr.so", "True"], done.stderr
