"""CUDA events and errors: real processes over the stand-ins for CUDA and NCCL."""

from pathlib import Path

import pytest
from conftest import QUIET, wait_until
from test_nccl import compiler, cuda_standin, standin, status_of  # noqa: F401  fixtures

SCRIPT = Path(__file__).parent / "cuda_job.py"


@pytest.fixture
def run(launch, cuda_standin):  # noqa: F811
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
        assert comm["completed"] == 3, comm  # the script has synchronised
        device = status["device"]
        assert device["followed"] == (0 if events else 3), device
        assert device["timed_operations"] == (3 if events else 0), device
        assert device["events_timed"] == (3 if events else 0), device
        assert (device["event_pairs"] > 0) == events, device
        assert not any(device["losses"].values()), device


def test_a_hang_has_device_times(run):
    """The waiting operation has started; the times of completed operations follow each other."""
    job = run("skip", 3).await_evidence()
    job.trace().expect("missing", [2], op="all_reduce", seq=4)
    operations = device_of(job, 0)["operations"]
    rows = [dict(zip(operations["fields"], r, strict=True)) for r in operations["rows"] if r]
    assert [r["state"] for r in rows] == ["completed"] * 3 + ["started"], rows
    times = [t for r in rows[:3] for t in (r["device_start"], r["device_end"])]
    assert times == sorted(times), rows
    assert all(r["flags"] & 32 for r in rows), rows


@pytest.mark.parametrize("how", ["polls", "synchronises"])
def test_a_hang_is_seen_by_the_scripts_own_waits(run, scratch, how):
    """No plugin, no event of fr's: torch's watchdog polls an event behind each operation, others
    synchronise."""
    job = run("polled-skip" if how == "polls" else "skip", 3, FR_TIMING="auto").await_evidence()
    job.trace().expect("missing", [2], op="all_reduce", seq=4)
    for rank in (0, 1):
        (path, *_) = job.evidence()[rank]
        dump = read_dump(path)
        fields = dump["records"]["fields"]
        state, kind = fields.index("state"), fields.index("kind")
        states = [r[state] for r in dump["records"]["rows"] if r and r[kind] == "collective"]
        assert states == ["completed"] * 3 + ["waiting"], states
        device = dump["device"]
        assert device["observer"] is None, device["observer"]
        assert not any(device["losses"].values()), device["losses"]
    assert "all_reduce #4 of" in job.log(), job.log()  # the watchdog's line


@pytest.mark.parametrize("api", [4, 6, 7])
def test_a_hang_that_nccl_does_not_report_is_seen_by_the_scripts_own_waits(run, api):
    """The plugin is loaded, and NCCL reports the call and nothing below it: a broadcast of 2.29.2
    to 2.30.7, symmetric memory, copy engines."""
    env = {"STANDIN_NCCL_API": str(api), "STANDIN_NCCL_QUIET": "1", "FR_TIMING": "auto"}
    job = run("polled-skip", 3, **env).await_evidence()
    job.trace().expect("missing", [2], op="all_reduce", seq=4)
    device = device_of(job, 0)
    assert device["plugin_api"] == api, device
    assert device["followed"] == 4, device


def test_nobody_is_blamed_by_waits_alone(run):
    """All ranks issued it and wait: what their devices do is not told."""
    job = run("polled", 3, FR_TIMING="auto", STANDIN_NCCL_FAULT="device:1:4").await_evidence()
    job.trace().expect("undecided", [])


@pytest.mark.parametrize("then", ["goes on", "exits"])
def test_polls_that_stop_are_no_hang(run, scratch, then):
    """Asked for once, as a caching allocator does, and left alone: nobody waits."""
    limits = {"FR_TIMEOUT_S": "1", "FR_WARN_S": "1"} if then == "goes on" else {}
    fault = "polled-once" if then == "goes on" else "polled-exit"
    job = run(fault, 2, FR_TIMING="auto", **limits)
    assert job.await_exit() == {0: 0, 1: 0}, job.log()
    assert job.evidence() == {}, job.log()
    assert "no progress" not in job.log()


def test_a_stuck_cuda_call_is_evidence_and_nothing_else(run, scratch):
    """Rank 1's fr-cuda never comes back; its dump is written, and says so."""
    job = run("stuck", 3).await_evidence()
    job.trace().expect("missing", [2], op="all_reduce", seq=4)
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
