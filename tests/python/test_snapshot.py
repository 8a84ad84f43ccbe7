"""fr.snapshot() beside PyTorch's own recorder, on the same gloo job."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

JOB = """
import pickle
import torch, torch.distributed as dist
import fr
dist.init_process_group("gloo")
r, n = dist.get_rank(), dist.get_world_size()
t = torch.ones(4, 3)
both = [torch.empty(4, 3) for _ in range(n)]
dist.all_reduce(t)
dist.broadcast(t, 0)
dist.all_gather(both, t)
dist.all_to_all_single(torch.empty(4, 3), t)
dist.barrier()
dist.reduce(t.double(), 0)
dist.all_reduce(t.to(torch.bfloat16), async_op=True).wait()
dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
theirs = pickle.loads(dump()) if dump is not None else None
done()
dist.send(t, 1) if r == 0 else dist.recv(t, 0)
pair = dist.new_group([0, 1], group_desc="pair")
dist.all_reduce(t, group=pair)
done()
value = {
    "ours": fr.snapshot(),
    "theirs": theirs,
    "no_entries": fr.snapshot(include_collectives=False),
    "no_frames": fr.snapshot(include_stack_traces=False),
    "active": fr.snapshot(only_active=True),
}
result(value)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def job(launch, adapter_built):
    ran = launch(JOB, n=2, env={"TORCH_FR_BUFFER_SIZE": "2000", "FR_BUFFER_SIZE": "2048"})
    if ran[0].result["theirs"] is None:
        pytest.skip("this torch has no _dump_fr_trace")
    return [r.result for r in ran]


def test_same_keys(job):
    for result in job:
        ours, theirs = result["ours"], result["theirs"]
        assert ours["version"] == "2.10"
        assert set(theirs) <= set(ours), set(theirs) - set(ours)
        for entry in ours["entries"]:
            assert set(theirs["entries"][0]) <= set(entry), entry
            for key, value in theirs["entries"][0].items():
                if value is not None and entry[key] is not None:
                    assert type(entry[key]) is type(value), key
        assert set(theirs["pg_status"]["0"]) == set(ours["pg_status"]["0"])
        for config in ours["pg_config"].values():
            assert set(config) == {"name", "desc", "ranks"}


def test_same_entries(job):
    same = (
        "collective_seq_id",
        "op_id",
        "input_sizes",
        "input_dtypes",
        "timeout_ms",
        "is_p2p",
        "pg_id",
        "process_group",
        "frames",
        "p2p_seq_id",
    )
    for result in job:
        ours = [e for e in result["ours"]["entries"] if not e["is_p2p"]]
        theirs = result["theirs"]["entries"]
        assert len(theirs) == 7
        for ours_entry, theirs_entry in zip(ours, theirs, strict=False):
            barrier = "barrier" in ours_entry["profiling_name"]
            for key in same:
                # PyTorch lists the placeholder of a barrier on some backends.
                if barrier and ("sizes" in key or "dtypes" in key):
                    continue
                a, b = ours_entry[key], theirs_entry[key]
                if key == "frames":
                    # The same call sites; fr keeps 32 frames at most.
                    a = [(f["filename"], f["name"], f["line"]) for f in a]
                    b = [(f["filename"], f["name"], f["line"]) for f in b][:32]
                assert a == b, (key, ours_entry["profiling_name"])
            if not barrier and "gather" not in ours_entry["profiling_name"]:
                # gloo describes gathered tensors as one.
                assert ours_entry["output_sizes"] == theirs_entry["output_sizes"]
                assert ours_entry["output_dtypes"] == theirs_entry["output_dtypes"]
            begun = abs(ours_entry["time_created_ns"] - theirs_entry["time_created_ns"])
            assert begun < 5_000_000_000  # the same clock; a busy machine may stop us in between
            name = theirs_entry["profiling_name"]
            assert ours_entry["profiling_name"].split(":")[0] == name.split(":")[0] == "gloo"


def test_names_of_the_operations(job):
    for rank, result in enumerate(job):
        assert [e["profiling_name"] for e in result["ours"]["entries"]] == [
            "gloo:all_reduce",
            "gloo:broadcast",
            "gloo:all_gather",
            "gloo:all_to_all",
            "gloo:all_reduce_barrier",
            "gloo:reduce",
            "gloo:all_reduce",
            "gloo:send 0->1" if rank == 0 else "gloo:recv 1<-0",
            "gloo:all_reduce",
        ]


def test_states_and_times(job):
    for result in job:
        for entry in result["ours"]["entries"]:
            assert entry["state"] == "completed"
            assert entry["retired"] is True
            assert entry["time_discovered_completed_ns"] >= entry["time_created_ns"]


def test_groups(job):
    for result in job:
        config = result["ours"]["pg_config"]
        assert config["0"] == {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
        (pair,) = [c for c in config.values() if c["desc"] == "pair"]
        assert pair["ranks"] == "[0, 1]"
        assert result["ours"]["pg_status"]["0"]["last_completed_collective"] == 7
        p2p = next(e for e in result["ours"]["entries"] if e["is_p2p"])
        assert (p2p["p2p_seq_id"], p2p["collective_seq_id"]) == (1, 7)


def test_choices(job):
    for result in job:
        assert "entries" not in result["no_entries"]
        assert all("frames" not in e for e in result["no_frames"]["entries"])
        assert result["active"]["entries"] == []


def test_only_active(launch, adapter_built):
    (ran,) = launch(
        """
        import fr
        g = fr.group("g", [0])
        a, b = fr.begin(g, "all_reduce", sizes=[3]), fr.begin(g, "broadcast", sizes=[4])
        fr.end(a)
        result(fr.snapshot(only_active=True))
        fr.end(b)
        """,
        n=0,
    )
    (entry,) = ran.result["entries"]
    assert entry["input_sizes"] == [[4]]
    assert entry["state"] == "scheduled"
    assert entry["time_discovered_completed_ns"] is None
