"""CUDA events and errors: real processes over the stand-ins for CUDA and NCCL."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import QUIET, wait_until
from test_nccl import standin, status_of  # noqa: F401  a fixture

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "cuda_job.py"
CALLER = """
#include <stddef.h>
extern "C" {
int ncclCommDestroy(void*);
int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
int cudaStreamSynchronize(void*);
int caller_destroy(void* c) { return ncclCommDestroy(c); }
int caller_all_reduce(void* b, size_t n, int t, int o, void* c, void* s) {
  return ncclAllReduce(b, b, n, t, o, c, s);
}
int caller_synchronize(void* s) { return cudaStreamSynchronize(s); }
}
"""


@pytest.fixture(scope="session")
def cuda_standin(standin):  # noqa: F811
    """The stand-ins for CUDA beside that for NCCL, and a library that is linked against all."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", f"-Wl,-rpath,{standin}"]
    source = ROOT / "tests" / "cuda" / "standin_cuda.cpp"
    cuda, runtime = standin / "libcuda.so.1", standin / "libcudart.so.12"
    (standin / "cuda_caller.cpp").write_text(CALLER)
    for inputs, output in (
        ([source], cuda),
        (["-DSTANDIN_CUDART", source, cuda], runtime),
        ([standin / "cuda_caller.cpp", standin / "libnccl.so.2", runtime, cuda], "libcaller.so"),
    ):
        name = Path(output).name
        command = [compiler, *flags, *inputs, f"-Wl,-soname,{name}", "-o", standin / name]
        subprocess.run(command, check=True)
    return standin


@pytest.fixture
def run(launch, cuda_standin):
    def start(fault, ranks, **env):
        env = {
            "CUDA_JOB_HOME": str(cuda_standin),
            "STANDIN_NCCL_API": "0",  # NCCL before 2.23: no plugin at all
            "NCCL_PROFILER_PLUGIN": "",
            "FR_TIMING": "events",
        } | env
        return launch(fault, ranks, env=env, script=SCRIPT)

    return start


def read_dump(path):
    msgpack = pytest.importorskip("msgpack")
    zstandard = pytest.importorskip("zstandard")
    with path.open("rb") as file:
        return msgpack.unpackb(zstandard.ZstdDecompressor().stream_reader(file).read())


def device_of(job, rank):
    (path, *_) = job.evidence()[rank]
    return read_dump(path)["device"]


@pytest.mark.parametrize("timing", ["events", "auto", "off"])
def test_an_old_nccl_without_the_plugin(run, scratch, timing):
    job = run("none", 2, FR_TIMING=timing, **QUIET)
    assert job.await_exit() == {0: 0, 1: 0}, job.log()
    assert job.evidence() == {}, job.log()
    for rank in range(2):
        status = status_of(scratch, rank)
        (comm,) = [g for g in status["groups"] if g["name"].startswith("nccl:")]
        events = timing == "events"
        assert comm["enqueued"] == 3, comm
        assert comm["completed"] == (3 if events else 0), comm
        device = status["device"]
        assert device["timed_operations"] == (3 if events else 0), device
        assert device["events_timed"] == (3 if events else 0), device
        assert (device["event_pairs"] > 0) == events, device
        assert not any(device["losses"].values()), device


def test_a_hang_has_device_times(run):
    """The one that waits has started; what is complete has times that follow on another."""
    job = run("skip", 3).await_evidence()
    job.trace().expect("missing", [2], op="all_reduce", seq=4)
    operations = device_of(job, 0)["operations"]
    rows = [dict(zip(operations["fields"], r, strict=True)) for r in operations["rows"] if r]
    assert [r["state"] for r in rows] == ["completed"] * 3 + ["started"], rows
    times = [t for r in rows[:3] for t in (r["device_start"], r["device_end"])]
    assert times == sorted(times), rows
    assert all(r["flags"] & 32 for r in rows), rows


def test_a_stuck_cuda_call_is_evidence_and_nothing_else(run, scratch):
    """Rank 1's fr-cuda never comes back; its dump is written, and says so."""
    job = run("stuck", 3).await_evidence()
    job.trace().expect("missing", [2], op="all_reduce", seq=4)
    assert "fr's own cuEventQuery has not returned" in job.log()
    observer = device_of(job, 1)["observer"]
    assert observer["call"] == "cuEventQuery", observer
    assert observer["since"] is not None, observer
    assert device_of(job, 0)["observer"]["call"] == "", "rank 0 is fine"
    assert status_of(scratch, 1)["device"]["observer_in"] == "cuEventQuery"


def test_the_first_asynchronous_error(run, scratch):
    job = run("error", 2, **QUIET).await_evidence()
    wait_until("both errors", lambda: (scratch / "failed").exists())
    errors = {}
    for rank in range(2):
        wait_until(
            f"an error in rank {rank}'s dump",
            lambda rank=rank: any(
                read_dump(path)["device"]["error"] for path in job.evidence()[rank]
            ),
        )
        for path in job.evidence()[rank]:
            dump = read_dump(path)
            if dump["device"]["error"]:
                errors[rank] = dump["device"]["error"], dump["clock"]["base_unix_ns"], dump
    for error, _, dump in errors.values():
        assert (error["code"], error["name"]) == (700, "cudaErrorIllegalAddress"), error
        by_host = error["call"] == "cudaStreamSynchronize"
        assert by_host or error["call"] == "cuEventQuery", error  # fr-cuda, where it was first
        fields = dump["records"]["fields"]
        (record,) = [
            r for r in dump["records"]["rows"] if r and r[fields.index("ticket")] == error["ticket"]
        ]
        assert record[fields.index("state")] == "failed", record
        # where the operation was issued, and where the host was told
        for stack in (record[fields.index("stack")], *([error["stack"]] if by_host else [])):
            frames = [dump["frames"][f] for f in dump["stacks"][stack]]
            functions = [dump["strings"][f[1]] for f in frames]
            assert "main" in functions, functions
    first, second = (errors[r][0]["time"] + errors[r][1] for r in (1, 0))
    assert first < second
    assert status_of(scratch, 1)["device"]["error"] == "cudaErrorIllegalAddress"
    assert "illegal memory access" in job.trace().stderr + str(job.trace().report)
