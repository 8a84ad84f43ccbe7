"""The real libnccl.so.2, as far as it goes without a GPU: hooks, error path, no crash.

Found in FR_TEST_NCCL (`make test-nccl` fetches it) or beside a CUDA build of torch.
"""

import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fr import _fr

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
        memory = ctypes.c_void_p()
        given = nccl.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(4096))
        if given == 0:
            nccl.ncclMemFree(memory)
        # refused without a communicator
        refused = {}
        for name in ("ncclAllReduceConfig", "ncclAlltoAll", "ncclCommRegister"):
            if hasattr(nccl, name):
                refused[name] = getattr(nccl, name)(*[None] * 8)
        print(json.dumps({"version": version.value, "group": group, "init": init, "bad": bad,
                          "refused": refused,
                          "ops": [r["op"] for r in _fr.records()]}))
        """
    )
    assert seen["version"] > 22000
    assert seen["group"] == [0, 0]
    assert seen["bad"] == 4
    assert "ncclCommInitRank" in seen["ops"]
    assert "ncclMemAlloc" in seen["ops"]
    assert 0 not in seen["refused"].values(), seen["refused"]
    calls = {n for n in seen["refused"] if n.startswith("ncclComm")}
    assert calls <= set(seen["ops"]), seen


HEADER_CHECK = """
#include "nccl/abi.hpp"
#include "nccl/tracker/tracker.hpp"
#include "nccl.h"
using namespace fr::nccl;
static_assert(kSuccess == ncclSuccess && kInProgress == ncclInProgress);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(ncclInt8 == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclUint32 == 3);
static_assert(ncclInt64 == 4 && ncclUint64 == 5 && ncclFloat16 == 6 && ncclFloat32 == 7);
static_assert(ncclFloat64 == 8 && ncclBfloat16 == 9);
#if NCCL_VERSION_CODE >= 22400
static_assert(ncclFloat8e4m3 == 10 && ncclFloat8e5m2 == 11 && ncclNumTypes == 12);
#endif
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
ncclResult_t (*init_scalable)(ncclComm_t*, int, int, int, ncclUniqueId*, ncclConfig_t*) =
    &ncclCommInitRankScalable;
ncclResult_t (*register_)(const ncclComm_t, void*, size_t, void**) = &ncclCommRegister;
ncclResult_t (*deregister)(const ncclComm_t, void*) = &ncclCommDeregister;
ncclResult_t (*allocate)(void**, size_t) = &ncclMemAlloc;
ncclResult_t (*release)(void*) = &ncclMemFree;
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(ConfigHead, blocking));
"""


CUDA_HEADER = """
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#define __CUDA_BF16_TYPES_EXIST__
"""

# Functions of newer NCCL versions, checked where the header has them.
NEWER = {
    22700: """
ncclResult_t (*shrink)(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) = &ncclCommShrink;
ncclResult_t (*window)(ncclComm_t, void*, size_t, ncclWindow_t*, int) = &ncclCommWindowRegister;
ncclResult_t (*no_window)(ncclComm_t, ncclWindow_t) = &ncclCommWindowDeregister;
""",
    22800: """
ncclResult_t (*all_to_all)(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) =
    &ncclAlltoAll;
ncclResult_t (*gather)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) =
    &ncclGather;
""",
    22900: """
ncclResult_t (*revoke_comm)(ncclComm_t, int) = &ncclCommRevoke;
ncclResult_t (*grow)(ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*, ncclConfig_t*) =
    &ncclCommGrow;
ncclResult_t (*suspend)(ncclComm_t, int) = &ncclCommSuspend;
ncclResult_t (*resume)(ncclComm_t) = &ncclCommResume;
ncclResult_t (*put)(const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int,
                    unsigned int, ncclComm_t, cudaStream_t) = &ncclPutSignal;
ncclResult_t (*signal_)(int, int, int, unsigned int, ncclComm_t, cudaStream_t) = &ncclSignal;
ncclResult_t (*wait)(int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t) = &ncclWaitSignal;
""",
    23200: """
using Config = const ncclCollConfig_t*;
ncclResult_t (*all_reduce_c)(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                             cudaStream_t, Config) = &ncclAllReduceConfig;
ncclResult_t (*broadcast_c)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t,
                            cudaStream_t, Config) = &ncclBroadcastConfig;
ncclResult_t (*reduce_c)(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                         cudaStream_t, Config) = &ncclReduceConfig;
ncclResult_t (*all_gather_c)(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t,
                             Config) = &ncclAllGatherConfig;
ncclResult_t (*reduce_scatter_c)(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t,
                                 ncclComm_t, cudaStream_t, Config) = &ncclReduceScatterConfig;
ncclResult_t (*all_to_all_c)(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t,
                             Config) = &ncclAlltoAllConfig;
ncclResult_t (*gather_c)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t,
                         Config) = &ncclGatherConfig;
ncclResult_t (*scatter_c)(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t,
                          Config) = &ncclScatterConfig;
""",
}


def test_constants_and_signatures_are_those_of_the_real_header(real_nccl, tmp_path):
    header = real_nccl.parent.parent / "include" / "nccl.h"
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None or not header.exists():
        pytest.skip("no C++ compiler, or no nccl.h beside the library")
    for name in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"):
        (tmp_path / name).write_text(CUDA_HEADER)
    (version,) = re.findall(r"define NCCL_VERSION_CODE (\d+)", header.read_text())
    newer = [text for since, text in NEWER.items() if int(version) >= since]
    (tmp_path / "check.cpp").write_text(HEADER_CHECK + "".join(newer))
    libfr = Path(__file__).resolve().parents[2] / "libfr"
    subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-I", tmp_path, "-I", header.parent, "-I", libfr,
         "-I", libfr / "include", tmp_path / "check.cpp"],
        check=True,
    )  # fmt: skip


def test_the_plugin_interface_is_what_this_nccl_takes_it_for(real_nccl, tmp_path):
    """NCCL's own translators between its versions are fed our structures, and fill them."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None or shutil.which("nm") is None:
        pytest.skip("no C++ compiler or no nm")
    names = subprocess.run(["nm", "-C", real_nccl], capture_output=True, text=True).stdout
    found = re.findall(r"^([0-9a-f]+) t getNcclProfiler_v(\d+)\(void\*\)$", names, re.MULTILINE)
    places = {int(version): place for place, version in found}
    if not places:
        pytest.skip("this NCCL has one version only, or its functions have no names")
    newest = max(places)
    places = {v: p for v, p in places.items() if v <= 6}
    if newest == 3:
        del places[2]  # 2.26 hands version 2 the events of version 3 as they are
    libfr = Path(__file__).resolve().parents[2] / "libfr"
    program = tmp_path / "adapters"
    subprocess.run(
        [compiler, "-std=c++20", "-rdynamic", "-I", libfr, "-I", libfr / "include",
         libfr.parent / "tests" / "nccl" / "adapters.cpp", "-o", program, "-ldl"],
        check=True,
    )  # fmt: skip
    said = subprocess.run(
        [program, real_nccl, str(newest), *(f"{v}:{p}" for v, p in sorted(places.items()))],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.splitlines() == [f"played {v}" for v in sorted(places)]


def test_the_newest_plugin_that_this_nccl_asks_for_is_there(real_nccl):
    """Newer ones than ours are asked for first, and older ones after them."""
    asked = {int(v) for v in re.findall(rb"ncclProfiler_v(\d+)\0", real_nccl.read_bytes())}
    own = ctypes.CDLL(_fr.library_path())
    ours = {v for v in range(1, 10) if hasattr(own, f"ncclProfiler_v{v}")}
    assert ours == {1, 2, 3, 4, 5, 6, 7}
    assert asked & ours, (asked, ours)
    assert max(asked & ours) == min(max(asked), max(ours))


def test_every_call_of_this_nccl_that_may_wait_is_hooked(real_nccl):
    """Functions that are in none of these lists are new: look whether they may wait."""
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    names = subprocess.run(
        ["nm", "-D", "--defined-only", real_nccl], capture_output=True, text=True, check=True
    ).stdout
    has = {line.split()[2] for line in names.splitlines()}
    has = {n for n in has if n.startswith("nccl")}
    source = Path(__file__).resolve().parents[2] / "libfr" / "nccl"
    text = "".join(path.read_text() for path in source.rglob("*.cpp"))
    hooked = set(re.findall(r'FR_HOOK\(\s*"(nccl\w+)"', text))
    assert "ncclAllReduce" in hooked
    unknown = {n for n in has - hooked if not re.fullmatch(ASKED, n)}
    assert not unknown


# These answer from what is there already.
ASKED = (
    r"ncclGet(UniqueId|Version|ErrorString|LastError|\w*DevicePointer|\w*LeInfo)|"
    r"ncclComm(Count|CuDevice|UserRank|GetUniqueId|QueryProperties|MemStats)|ncclRedOp\w+|"
    r"ncclParam\w+|ncclTeam\w+|nccl\w+CreateRequirement|ncclLLA2ACalcSlots|ncclWinGetUserPtr|"
    r"ncclResetDebugInit\w*|ncclSetEncryption"
)
