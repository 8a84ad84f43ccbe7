"""The real libnccl.so.2, as far as it goes without a GPU: hooks, error path, no crash.

Found in FR_TEST_NCCL (`make test-nccl` fetches it) or beside a CUDA build of torch.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CALLER = """
#include <stddef.h>
extern "C" int ncclGroupStart(); extern "C" int ncclGroupEnd();
extern "C" int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
struct Id { char bytes[128]; };
extern "C" int ncclGetUniqueId(Id*);
extern "C" int ncclCommInitRank(void**, int, Id, int);
extern "C" int caller_group() { return ncclGroupStart() + 10 * ncclGroupEnd(); }
extern "C" int caller_bad_comm() { return ncclAllReduce(0, 0, 1, 7, 0, 0, 0); }
extern "C" int caller_init() {
  Id id; void* comm = 0;
  const int made = ncclGetUniqueId(&id);
  return made != 0 ? 100 + made : ncclCommInitRank(&comm, 1, id, 0);
}
"""


def find_nccl():
    named = os.environ.get("FR_TEST_NCCL")
    if named:
        return Path(named)
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "lib" / "libnccl.so.2"
        if path.exists():
            return path
    return None


@pytest.fixture(scope="module")
def real_nccl():
    path = find_nccl()
    if path is None:
        pytest.skip("no libnccl.so.2: `make test-nccl` fetches one")
    return path


@pytest.fixture
def run(real_nccl, tmp_path):
    """Runs a script with `nccl`, the library, and `caller`, which is linked against it."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")

    def call(script, binding="lazy"):
        source = tmp_path / "caller.cpp"
        source.write_text(CALLER)
        caller = tmp_path / "libcaller.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", source, "-o", caller, f"-Wl,-z,{binding},-z,relro",
             f"-Wl,-rpath,{real_nccl.parent}", real_nccl],
            check=True,
        )  # fmt: skip
        prelude = f"""
            import ctypes, json, os, sys, fr
            from fr import _fr
            nccl = ctypes.CDLL({str(real_nccl)!r})
            caller = ctypes.CDLL({str(caller)!r})
        """
        env = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "NCCL_"))}
        env |= {"FR_SHM_DIR": str(tmp_path), "FR_DUMP_DIR": str(tmp_path / "dumps"), "RANK": "0"}
        got = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(script)],
            capture_output=True, text=True, timeout=90, env=env,
        )  # fmt: skip
        assert got.returncode == 0, got.stderr
        return json.loads(got.stdout.splitlines()[-1])

    return call


@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_hooks_and_error_path(run, binding):
    seen = run(
        """
        before = caller.caller_group()
        hooked = _fr.nccl_hook()
        out = {"before": before, "hooked": hooked, "group": caller.caller_group(),
               "bad_comm": caller.caller_bad_comm(), "init": caller.caller_init(),
               "env": os.environ["NCCL_PROFILER_PLUGIN"], "path": _fr.library_path()}
        out["records"] = _fr.records()
        out["restored"] = _fr.nccl_unhook()
        out["after"] = caller.caller_group(), caller.caller_bad_comm(), _fr.nccl_hook()
        print(json.dumps(out, default=str))
        """,
        binding,
    )
    assert seen["before"] == 0
    assert seen["group"] == 0
    assert seen["bad_comm"] == 4  # ncclInvalidArgument, through our wrapper
    assert seen["hooked"] >= 4
    assert seen["restored"] == seen["hooked"] == seen["after"][2]
    assert seen["after"][:2] == [0, 4]
    assert seen["env"] == seen["path"]
    # no GPU here: making a communicator fails, and that is on record
    if seen["init"] != 0:
        (record,) = [r for r in seen["records"] if r["op"] == "ncclCommInitRank"]
        assert record["state"] == "failed"
        assert record["error"].startswith("ncclCommInitRank: "), record
        assert f"({seen['init']})" in record["error"]


def test_ctypes_gets_the_wrappers(run):
    """As vLLM's pynccl calls it: what ctypes looks up is ours, and works."""
    seen = run(
        """
        version = ctypes.c_int()
        code = nccl.ncclGetVersion(ctypes.byref(version))
        group = nccl.ncclGroupStart(), nccl.ncclGroupEnd()
        comm = ctypes.c_void_p()
        unique = (ctypes.c_char * 128)()
        class Id(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_char * 128)]
        own = Id()
        nccl.ncclGetUniqueId(ctypes.byref(own))
        init = nccl.ncclCommInitRank(ctypes.byref(comm), 1, own, 0)
        bad = nccl.ncclAllReduce(None, None, ctypes.c_size_t(1), 7, 0, None, None)
        print(json.dumps({"version": version.value, "group": group, "init": init, "bad": bad,
                          "ops": [r["op"] for r in _fr.records()]}))
        """
    )
    assert seen["version"] > 22000
    assert seen["group"] == [0, 0]
    assert seen["bad"] == 4
    assert "ncclCommInitRank" in seen["ops"]


HEADER_CHECK = """
#include "foreign/nccl_abi.hpp"
#include "foreign/nccl_tracker.hpp"
#include "nccl.h"
using namespace fr::nccl;
static_assert(kSuccess == ncclSuccess && kInProgress == ncclInProgress);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclUint32 == 3);
static_assert(ncclInt64 == 4 && ncclUint64 == 5 && ncclFloat16 == 6 && ncclFloat32 == 7);
static_assert(ncclFloat64 == 8 && ncclBfloat16 == 9);
static_assert(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4);
// What the wrappers pass on, by size and order.
static_assert(sizeof(ncclComm_t) == sizeof(void*) && sizeof(ncclDataType_t) == sizeof(int));
using AllReduce = ncclResult_t(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                               cudaStream_t);
AllReduce* all_reduce = &ncclAllReduce;
ncclResult_t (*broadcast)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                          cudaStream_t) = &ncclBroadcast;
ncclResult_t (*reduce)(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                       cudaStream_t) = &ncclReduce;
ncclResult_t (*send)(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) =
    &ncclSend;
ncclResult_t (*init)(ncclComm_t*, int, ncclUniqueId, int) = &ncclCommInitRank;
ncclResult_t (*init_config)(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*) =
    &ncclCommInitRankConfig;
ncclResult_t (*split)(ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*) = &ncclCommSplit;
ncclResult_t (*async_error)(ncclComm_t, ncclResult_t*) = &ncclCommGetAsyncError;
"""


def test_constants_and_signatures_are_those_of_the_real_header(real_nccl, tmp_path):
    header = real_nccl.parent.parent / "include" / "nccl.h"
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None or not header.exists():
        pytest.skip("no C++ compiler, or no nccl.h beside the library")
    for name in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"):
        (tmp_path / name).write_text("typedef struct CUstream_st* cudaStream_t;\n")
    (tmp_path / "check.cpp").write_text(HEADER_CHECK)
    libfr = Path(__file__).resolve().parents[2] / "libfr"
    subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-I", tmp_path, "-I", header.parent, "-I", libfr,
         "-I", libfr / "include", tmp_path / "check.cpp"],
        check=True,
    )  # fmt: skip
