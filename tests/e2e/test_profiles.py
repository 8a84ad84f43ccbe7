"""Who comes late by other tools' files: traces of torch.profiler, NCCL Inspector's lines.

Traces of gloo are real (tests/data/kineto), those of NCCL and the Inspector's lines are made here
from the names in their sources: no such file of a real job could be made without a GPU.
"""

import json
import shutil
from pathlib import Path

import pytest
from conftest import frtrace

DATA = Path(__file__).resolve().parents[1] / "data"
KINETO = DATA / "kineto"
STEPS = 20


def text_of(trace):
    return json.dumps(trace.report["findings"])


def test_real_traces_name_the_late_rank():
    trace = frtrace(KINETO / "late")
    assert (trace.verdict["kind"], trace.verdict["ranks"]) == ("slow", [2]), trace
    assert trace.verdict["confidence"] == "likely"
    (late,) = trace.report["stragglers"]
    assert (late["rank"], late["cause"], late["pattern"]) == (2, "host", "always")
    assert late["op"] == "all_reduce" and late["desc"] == "default_pg"
    assert 0.005 < late["median_s"] <= late["worst_s"] < 0.2 and late["worst_s"] > 0.05
    assert "torch.profiler" in text_of(trace)


def test_traces_never_say_that_nothing_is_stuck():
    trace = frtrace(KINETO / "even")
    assert (trace.verdict["kind"], trace.verdict["ranks"]) == ("undecided", []), trace
    assert "whether something is stuck" in trace.verdict["summary"]


def test_a_trace_that_begins_elsewhere_is_not_compared(tmp_path):
    """Of gloo nothing but the place in the trace numbers an operation."""
    for path in (KINETO / "late").glob("*.json"):
        trace = json.loads(path.read_text())
        if "rank1" in path.name:
            first = next(e for e in trace["traceEvents"] if e["name"].startswith("gloo:"))
            trace["traceEvents"].remove(first)
        (tmp_path / path.name).write_text(json.dumps(trace))
    assert frtrace(tmp_path).verdict["kind"] == "undecided"


def test_traces_beside_dumps_change_nothing(tmp_path):
    for source in (DATA / "torch" / "skip", KINETO / "late"):
        for path in source.iterdir():
            shutil.copy(path, tmp_path / path.name)
    both, alone = frtrace(tmp_path), frtrace(DATA / "torch" / "skip")
    assert both.verdict["ranks"] == alone.verdict["ranks"]
    assert both.verdict["kind"] == alone.verdict["kind"]


def nccl_trace(rank, world, late_rank, late_us, first=0):
    """A step is 100 ms of compute, an all_reduce of pairs, one of all; kernels end together."""
    events, clock, pair = [], 1000.0, rank // 2
    for step in range(STEPS):
        late = late_us if late_rank is not None else 0
        own = late if rank == late_rank else 0
        near = late if late_rank is not None and late_rank // 2 == pair else 0
        for n, (name, desc, ranks, begin, end) in enumerate(
            [
                (f"{10 + pair}", "tp", [2 * pair, 2 * pair + 1], own, near + 500),
                ("0", "default_pg", list(range(world)), near + 600, late + 1200),
            ]
        ):
            args = {
                "External id": 2 * step + n,
                "Collective name": "allreduce",
                "Process Group Name": name,
                "Process Group Description": desc,
                "Process Group Ranks": str(ranks),
                "Seq": step,
                "Rank": rank,
            }
            at = {"ph": "X", "pid": 1, "tid": 1, "ts": clock + begin}
            events.append(
                at | {"cat": "cpu_op", "name": "record_param_comms", "dur": 9, "args": args}
            )
            kernel = {"cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)"}
            only = {"External id": args["External id"], "Collective name": "allreduce"}
            events.append(
                at | kernel | {"ts": clock + begin + 20, "dur": end - begin - 20, "args": only}
            )
        clock += 100_000 + late + 1200
    config = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(world))},
        {"pg_name": f"{10 + pair}", "pg_desc": "tp", "ranks": [2 * pair, 2 * pair + 1]},
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": world,
            "pg_config": config,
        },
        "host_name": f"n{rank // 2}",
        "baseTimeNanoseconds": 1790857026000000000 + rank * 7_000_000_000,  # clocks are apart
        "traceEvents": events[2 * first :],
    }


@pytest.mark.parametrize("late_rank", [None, 1])
def test_traces_of_nccl(tmp_path, late_rank):
    """Kernels and calls are joined, groups told apart, who waits in another group is not named."""
    for rank in range(4):
        trace = nccl_trace(rank, 4, late_rank, 60_000, first=rank)  # profiles begin anywhere
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    trace = frtrace(tmp_path)
    if late_rank is None:
        assert trace.verdict["kind"] == "undecided", trace
    else:
        assert (trace.verdict["kind"], trace.verdict["ranks"]) == ("slow", [1]), trace
        assert trace.report["stragglers"][0]["desc"] == "tp"


def test_hostile_traces(tmp_path):
    whole = (KINETO / "late" / "trace_rank0.json").read_text()
    deep = '{"schemaVersion": 1, "distributedInfo": ' + "[" * 500
    for n, text in enumerate([whole[:9000], deep, whole.replace('"rank": 0', '"rank": -7')]):
        (tmp_path / f"{n}.json").write_text(text)
        trace = frtrace(tmp_path / f"{n}.json")
        assert trace.status == 3, trace


def inspector(rank, world, numbers, late_rank, version="v4.0", host="n0"):
    """Lines of one process: its kernel runs as long as it waits for the last one."""
    header = {"id": "0x7f8c", "comm_name": "DP", "rank": rank, "n_ranks": world, "nnodes": 1}
    lines = []
    for n in numbers:
        meta = {
            "inspector_output_format_version": version,
            "dump_timestamp_us": 1_790_857_026_000_000 + n * 100_000,
            "hostname": host,
            "pid": 4000 + rank,
        }
        us = 1200 if rank == late_rank else 61_200 + 10 * rank
        coll = {"coll": "AllReduce", "coll_sn": n, "coll_exec_time_us": us}
        context = {"header": header, "metadata": meta}
        if version == "v4.3":
            lines += [context | {"dump_stats": {"coll_records": 1}}, {"coll_perf": coll}]
        else:
            lines.append(context | {"coll_perf": coll})
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
def test_inspector_is_a_witness_and_blames_nobody(tmp_path, version):
    for rank in range(4):
        last = 40 if rank == 2 else 41
        text = inspector(rank, 4, range(last + 1), 3, version) + "{ cut off"
        (tmp_path / f"n0-pid{4000 + rank}.log").write_text(text)
    trace = frtrace(tmp_path)
    assert (trace.verdict["kind"], trace.verdict["ranks"]) == ("undecided", []), trace
    found = text_of(trace)
    assert "NCCL's Inspector: AllReduce of communicator 0x7f8c (DP)" in found
    assert "completed by ranks 0,1,3 up to #41, by rank 2 up to #40" in found
    assert "rank 3 came last to 41 of 41, by 60 ms at the median" in found, found


def test_inspector_beside_dumps_says_where_the_missing_rank_is(tmp_path):
    """The dump of rank 1 is missing in this set; the verdict stays that of the dumps."""
    source = DATA / "torch" / "crash"
    for path in source.iterdir():
        shutil.copy(path, tmp_path / path.name)
    alone = frtrace(tmp_path)
    for rank in range(4):
        text = inspector(rank, 4, range(5 if rank == 1 else 6), None)
        (tmp_path / f"n0-pid{4000 + rank}.log").write_text(text)
    both = frtrace(tmp_path)
    assert both.verdict["ranks"] == alone.verdict["ranks"]
    assert both.verdict["kind"] == alone.verdict["kind"]
    assert "completed by ranks 0,2,3 up to #5, by rank 1 up to #4" in text_of(both), text_of(both)


def torchcomms(rank, ops, first=0):
    """A dump as torchcomms' hooks/fr/FlightRecorder.cpp writes it: (op, communicator, retired)."""
    entries = [
        {
            "record_id": n,
            "pg_id": ["main", "tp"].index(comm),
            "process_group": [comm, "ncclx"],
            "thread_name": "main",
            "thread_id": "1",
            "collective_seq_id": n,
            "p2p_seq_id": 0,
            "op_id": n,
            "profiling_name": f"ncclx:{op}",
            "time_created_ns": 1790857026000000000 + n * 10_000_000 + rank * 1000,
            "input_sizes": [[64]],
            "input_dtypes": ["Float"],
            "output_sizes": [[64]],
            "output_dtypes": ["Float"],
            "state": "scheduled",  # as without events of the device
            "time_discovered_started_ns": 0,
            "time_discovered_completed_ns": 0,
            "retired": retired,
            "timeout_ms": 600000,
            "is_p2p": False,
        }
        for n, (op, comm, retired) in enumerate(ops)
    ]
    pair = [rank - rank % 2, rank - rank % 2 + 1]
    config = {"main": [0, 1, 2, 3], "tp": pair}
    return {
        "version": "2.10",
        "comm_lib_version": "2.28.9",
        "pg_config": {
            name: {"name": name, "desc": "ncclx", "ranks": str(ranks).replace(" ", "")}
            for name, ranks in config.items()
        },
        "pg_status": {},
        "entries": entries[first:],
    }


def torchcomms_set(directory, first=0):
    """Rank 1 never issues the third all_reduce of all ranks."""
    done = [("all_reduce", "tp", True), ("all_reduce", "main", True)] * 2
    for rank in range(4):
        ops = [*done, ("all_reduce", "tp", True)]
        if rank >= 2:
            ops.insert(0, ("all_gather_single", "tp", True))  # its numbers are one on
        if rank != 1:
            ops.append(("all_reduce", "main", False))
        path = directory / f"comm_lib_trace_rank_{rank}"
        path.write_text(json.dumps(torchcomms(rank, ops, first)))


def test_torchcomms_names_who_never_came(tmp_path):
    torchcomms_set(tmp_path)
    trace = frtrace(tmp_path)
    assert (trace.verdict["kind"], trace.verdict["ranks"]) == ("missing", [1]), trace
    assert trace.verdict["blamed"][0]["op"] == "all_reduce"


def test_torchcomms_that_lost_entries_is_not_compared(tmp_path):
    torchcomms_set(tmp_path, first=1)
    trace = frtrace(tmp_path)
    assert trace.status == 3 and not trace.report.get("verdict", {}).get("ranks"), trace
    assert "torchcomms" in json.dumps(trace.report["input"]) + trace.stderr
