"""Every kind of operation of torch.distributed on two gloo ranks, as the adapter records it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("adapter_built")

OPS = """
import torch, torch.distributed as dist
import fr
torch.set_num_threads(1)

def user_function(t):
    dist.all_reduce(t, op=dist.ReduceOp.MAX)

dist.init_process_group("gloo")
r, n = dist.get_rank(), dist.get_world_size()
t = torch.ones(4, 3)
both = [torch.empty(4, 3) for _ in range(n)]
user_function(t)
dist.broadcast(t, src=1)
dist.barrier()
dist.reduce(t.to(torch.float64), 1)
dist.all_gather(both, t)
dist.all_gather_into_tensor(torch.empty(4 * n, 3), t)
dist.reduce_scatter_tensor(torch.empty(2, 3), t)
dist.reduce_scatter(torch.empty(4, 3), both)
dist.all_to_all_single(torch.empty(4, 3), t)
dist.all_to_all_single(torch.empty([2, 6][r], 3), t, [1 + 2 * r] * 2, [1, 3])
dist.gather(t, both if r == 0 else None, dst=0)
dist.scatter(t, both if r == 0 else None, src=0)
if r == 0:
    dist.send(t, 1)
    dist.recv(t, 1)
else:
    dist.recv(t)
    dist.send(t, 0)
ops = [dist.P2POp(dist.isend, t, 1 - r), dist.P2POp(dist.irecv, torch.empty(4, 3), 1 - r)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
dist.all_reduce(t, async_op=True).wait()
objects = [None] * n
dist.all_gather_object(objects, {"rank": r})
dist.monitored_barrier()
mine = dist.new_group([1], group_desc="only one")
pair = dist.new_group([0, 1], group_desc="pair")
if r == 1:
    dist.all_reduce(t, group=mine)
dist.all_reduce(t, group=pair)
with dist._coalescing_manager():
    dist.all_reduce(t)
    dist.all_reduce(t[:1])
with torch.no_grad():
    dist.all_reduce(t.to(torch.bfloat16))
with torch.inference_mode():
    dist.all_reduce(t)
dropped = dist.isend(t, 1 - r) if r == 0 else None
dist.recv(t, 0) if r == 1 else None
store = dist.distributed_c10d._get_default_store()
store.set(f"done{r}", "1")
store.wait(["done0", "done1"])  # nobody leaves while the other one still receives
dropped = None
value = {"records": done(), "objects": objects, "status": fr.status()}
result(value)
dist.destroy_process_group()
"""

WAIT_ONLY, ASYNC, COALESCED = 2, 1, 8


@pytest.fixture(scope="module")
def ops(launch, adapter_built):
    return [r.result for r in launch(OPS, n=2)]


def of(result, op, kind="collective", group="0"):
    return [
        r
        for r in result["records"]
        if r["op"] == op and r["kind"] == kind and r["group_name"] == group
    ]


def test_order_and_sequence_numbers(ops):
    names = [
        "all_reduce",
        "broadcast",
        "barrier",
        "reduce",
        "all_gather",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "reduce_scatter",
        "all_to_all_single",
        "all_to_all_single",
        "gather",
        "scatter",
        "all_reduce",
        "all_gather",
        "all_gather",
        "monitored_barrier",
        "all_reduce_coalesced",
        "all_reduce",
        "all_reduce",
    ]
    for result in ops:
        world = [
            r for r in result["records"] if r["kind"] == "collective" and r["group_name"] == "0"
        ]
        assert [r["op"] for r in world] == names
        assert [r["seq"] for r in world] == list(range(1, len(names) + 1))
        assert all(r["timeout_ms"] == 30 * 60 * 1000 for r in world)
        assert all(r["state"] == "completed" for r in world)


def test_results_are_what_they_would_be(ops):
    for result in ops:
        assert result["objects"] == [{"rank": 0}, {"rank": 1}]
        assert result["status"]["python"]["problems"] == []
        assert "adapter" in result["status"]["layers"]["torch"]


def test_all_reduce(ops):
    for result in ops:
        r = of(result, "all_reduce")[0]
        assert r["reduce_op"] == "MAX"
        assert r["in_sizes"] == r["out_sizes"] == [[4, 3]]
        assert (r["in_numel"], r["out_numel"]) == (12, 12)
        assert (r["in_dtype"], r["out_dtype"]) == ("Float", "Float")
        assert r["peer"] == -1
        assert r["flags"] == 0
        functions = [f[2] for f in r["stack"]]
        assert functions[0] == "all_reduce"
        user = next(f for f in r["stack"] if f[0].endswith("script.py"))
        assert user[2] == "user_function"
        assert functions[-1] == "<module>"
        assert of(result, "all_reduce")[1]["flags"] == ASYNC
        assert of(result, "all_reduce")[2]["in_dtype"] == "BFloat16"  # under no_grad
        assert of(result, "all_reduce")[3]["in_dtype"] == "Float"  # under inference_mode


def test_roots(ops):
    for result in ops:
        assert of(result, "broadcast")[0]["peer"] == 1
        reduced = of(result, "reduce")[0]
        assert (reduced["peer"], reduced["in_dtype"], reduced["reduce_op"]) == (1, "Double", "SUM")
        assert of(result, "gather")[0]["peer"] == 0
        assert of(result, "scatter")[0]["peer"] == 0
    assert of(ops[0], "gather")[0]["out_sizes"] == [[4, 3], [4, 3]]
    assert of(ops[1], "gather")[0]["out_sizes"] == []
    assert of(ops[0], "scatter")[0]["in_sizes"] == [[4, 3], [4, 3]]


def test_barriers_have_no_tensors(ops):
    for result in ops:
        for name in ("barrier", "monitored_barrier"):
            r = of(result, name)[0]
            assert (r["in_sizes"], r["out_sizes"], r["shape"], r["in_numel"]) == ([], [], [], 0)


def test_gathers_and_scatters(ops):
    for result in ops:
        r = of(result, "all_gather")[0]
        assert (r["in_sizes"], r["out_sizes"]) == ([[4, 3]], [[4, 3], [4, 3]])
        assert (r["in_numel"], r["out_numel"]) == (12, 24)
        r = of(result, "all_gather_into_tensor")[0]
        assert (r["in_sizes"], r["out_sizes"]) == ([[4, 3]], [[8, 3]])
        r = of(result, "reduce_scatter_tensor")[0]
        assert (r["in_sizes"], r["out_sizes"]) == ([[4, 3]], [[2, 3]])
        assert r["flags"] & WAIT_ONLY
        r = of(result, "reduce_scatter")[0]
        assert (r["in_sizes"], r["out_sizes"]) == ([[4, 3], [4, 3]], [[4, 3]])


def test_split_sizes(ops):
    for rank, result in enumerate(ops):
        even, uneven = of(result, "all_to_all_single")
        assert even["shape"][0] >> 26 & 1 == 0
        assert uneven["shape"][0] >> 26 & 1 == 1
        assert uneven["in_sizes"] == [[4, 3]]
        assert uneven["out_sizes"] == [[2, 3]] if rank == 0 else [[6, 3]]
        assert uneven["shape"][-6:] == [2, 1, 3, 2, *([1, 1] if rank == 0 else [3, 3])]


def test_point_to_point(ops):
    for rank, result in enumerate(ops):
        sends = of(result, "send", "send")
        recvs = of(result, "recv", "recv")
        assert {s["peer"] for s in sends} == {1 - rank}
        assert sends[0]["in_sizes"] == [[4, 3]]
        assert recvs[0]["out_sizes"] == [[4, 3]]
        assert [s["seq"] for s in sends] == list(range(1, len(sends) + 1))
        assert all(r["flags"] & WAIT_ONLY for r in sends + recvs)
        assert recvs[0]["peer"] == (1 if rank == 0 else -1)  # -1: from anyone
        assert all(r["state"] == "completed" for r in recvs)
    sends = of(ops[0], "send", "send")
    assert [s["state"] for s in sends] == ["completed", "completed", "released"]


def test_coalesced(ops):
    for result in ops:
        r = of(result, "all_reduce_coalesced")[0]
        assert r["flags"] & COALESCED
        assert r["in_sizes"] == [[4, 3], [1, 3]]
        assert r["in_numel"] == 15


def test_groups(ops):
    for rank, result in enumerate(ops):
        groups = {g["name"]: g for g in result["status"]["groups"]}
        assert groups["0"]["desc"] == "default_pg"
        descriptions = {g["desc"]: g["n_ranks"] for g in groups.values()}
        assert descriptions["pair"] == 2
        assert ("only one" in descriptions) == (rank == 1)
        pair = next(g for g in groups.values() if g["desc"] == "pair")
        r = of(result, "all_reduce", group=pair["name"])[0]
        assert r["seq"] == 1


def test_lifecycle(ops):
    for result in ops:
        calls = [r["op"] for r in result["records"] if r["kind"] == "lifecycle" and r["group"] == 0]
        # what init_process_group and new_group do at the store is their own
        assert calls == ["init_process_group", "new_group", "new_group", "store.wait done#"]
        made = [r for r in result["records"] if r["op"] == "new_group"]
        # torch's ordinal; first, count, stride of the members, whoever calls
        assert [r["peer"] for r in made] == [1, 2]
        assert [r["shape"][2:] for r in made] == [[1, 1, 1], [0, 2, 1]]


FRAMEWORKS = """
import warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
import fr
import torch.distributed._functional_collectives as funcol
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
r, n = dist.get_rank(), dist.get_world_size()
marks = {}
def mark(name):
    marks[name] = len(done())

def train_ddp():
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    model(torch.ones(2, 8)).sum().backward()
train_ddp()
mark("ddp")
funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD).wait()
mark("funcol")
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (n,))
from torch.distributed.tensor import distribute_tensor, Shard, Replicate
x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
x.redistribute(mesh, [Replicate()]).to_local()
mark("dtensor")
fsdp = "ok"
try:
    from torch.distributed.fsdp import fully_shard
    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 8)).sum().backward()
except Exception as error:
    fsdp = repr(error)
mark("fsdp2")
import threading
thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(5)), name="other")
thread.start(); thread.join()
mark("thread")
result({"records": done(), "marks": marks, "fsdp": fsdp, "tid": threading.get_native_id()})
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def frameworks(launch, adapter_built):
    return [r.result for r in launch(FRAMEWORKS, n=2)]


def section(result, name):
    marks = result["marks"]
    names = list(marks)
    at = names.index(name)
    begin = marks[names[at - 1]] if at else 0
    return [r for r in result["records"][begin : marks[name]] if r["kind"] == "collective"]


def test_ddp(frameworks):
    for result in frameworks:
        records = section(result, "ddp")
        backward = [r for r in records if r["op"] == "all_reduce"]
        assert any(r["in_numel"] == 8 * 8 + 8 for r in backward)
        stack = next(r for r in backward if r["in_numel"] == 72)["stack"]
        assert any(f[2] == "train_ddp" for f in stack)
        assert any(r["op"] != "all_reduce" for r in records)  # the constructor's own


def test_functional_collectives(frameworks):
    for result in frameworks:
        assert [(r["op"], r["in_sizes"]) for r in section(result, "funcol")] == [
            ("all_reduce", [[3]])
        ] or [r["op"] for r in section(result, "funcol")] == ["all_reduce_coalesced"]


def test_dtensor(frameworks):
    for result in frameworks:
        assert any("all_gather" in r["op"] for r in section(result, "dtensor"))


def test_fsdp2(frameworks):
    for result in frameworks:
        if result["fsdp"] != "ok":
            pytest.skip(f"fully_shard does not run on gloo here: {result['fsdp']}")
        names = {r["op"] for r in section(result, "fsdp2")}
        assert any(n.startswith("all_gather") for n in names)
        assert any(n.startswith("reduce_scatter") for n in names)


def test_other_threads(frameworks):
    for result in frameworks:
        (r,) = section(result, "thread")
        assert r["in_sizes"] == [[5]]
        assert r["tid"] != result["tid"]
        assert any(f[2].endswith("<lambda>") for f in r["stack"])


def test_results_survive_a_reused_group_name(launch):
    """After destroy and init the same names are new groups with sequence numbers from 1."""
    (ran,) = launch(
        """
        import torch, torch.distributed as dist
        import fr
        for _ in range(3):
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
        result([done(), fr.status()])
        """
    )
    records, status = ran.result
    collectives = [r for r in records if r["kind"] == "collective"]
    assert [r["seq"] for r in collectives] == [1, 1, 1]
    assert len({r["group"] for r in collectives}) == 3
    groups = [g for g in status["groups"] if g["name"] == "0"]
    assert [g["destroyed"] for g in groups] == [True] * 3


def test_errors(launch):
    """A size mismatch ends in an error on at least one rank, with its text."""
    ran = launch(
        """
        import torch, torch.distributed as dist
        import fr
        dist.init_process_group("gloo")
        r = dist.get_rank()
        try:
            dist.all_gather_into_tensor(torch.empty(2), torch.ones(3))  # refused when issued
        except Exception as error:
            print("refused", error)
        try:
            dist.all_reduce(torch.ones([4, 1 << 16][r]))
        finally:
            result(done())
        """,
        n=2,
        check=False,
    )
    assert any(r.code != 0 for r in ran), ran
    # The rank that receives too much may be aborted by gloo before it can tell.
    told = [r for r in ran if r.result]
    assert told, ran
    records = [rec for r in told for rec in r.result]
    refused = [rec for rec in records if rec["op"] == "all_gather_into_tensor"]
    assert [rec["state"] for rec in refused] == ["failed"] * len(told)
    assert all(rec["error"] for rec in refused)
    failed = [rec for rec in records if rec["op"] == "all_reduce" and rec["state"] == "failed"]
    assert failed and all(rec["error"] for rec in failed)
    # Each failed rank left its dump.
    assert list((ran[0].dir / "dumps").rglob("*.fr"))


def test_a_refused_argument_is_no_incident(launch):
    """Nothing was sent and the program goes on: the record says failed, and nobody dumps."""
    (ran,) = launch(
        """
        import torch, torch.distributed as dist
        import fr
        dist.init_process_group("gloo")
        try:
            dist.all_gather_into_tensor(torch.empty(2), torch.ones(3))
        except RuntimeError:
            pass
        dist.all_reduce(torch.ones(1))
        result(done())
        """
    )
    refused, reduced = [r for r in ran.result if r["kind"] == "collective"]
    assert refused["state"] == "failed" and "invalid tensor size" in refused["error"]
    assert reduced["state"] == "completed"
    assert not (ran.dir / "dumps").exists()


def test_a_monitored_barrier_that_a_rank_misses_has_failed(launch):
    """Its error is of torch's type for refused arguments; what hung before it did not go on."""
    ran = launch(
        """
        import datetime, torch, torch.distributed as dist
        import fr
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 0:
            try:
                dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
            except RuntimeError as error:
                print(error)
            store.set("over", "1")
        store.wait(["over"])
        result(done())
        """,
        n=2,
    )
    (missed,) = [r for r in ran[0].result if r["op"] == "monitored_barrier"]
    assert missed["state"] == "failed" and "failed to pass" in missed["error"]
    assert list((ran[0].dir / "dumps").rglob("*.r0.*.fr"))  # a refused argument leaves none


def test_groups_that_come_and_go_leak_nothing_of_those_that_stay(launch):
    script = """
        import fr, torch, torch.distributed as dist

        def own_bytes():
            with open("/proc/self/smaps_rollup") as lines:
                return sum(int(s.split()[1]) for s in lines if s.startswith("Anonymous:")) << 10

        def rounds(n):
            for _ in range(n):
                group = dist.new_group([0])
                dist.all_reduce(torch.ones(1), group=group)
                dist.destroy_process_group(group)
                for lasting in stay:
                    dist.all_reduce(torch.ones(1), group=lasting)

        dist.init_process_group("gloo")
        stay = [dist.new_group([0]) for _ in range(60)]
        rounds(40)
        before = own_bytes()
        rounds(150)
        result((own_bytes() - before) / 150)
        """
    (without,) = launch(script, env={"FR_ENABLE": "0"})
    (recorded,) = launch(script)
    # An entry for each group that stays, in each round, was 14 KB.
    assert recorded.result < without.result + 7000


def test_an_operation_nobody_waits_for_is_seen_to_end(launch):
    (ran,) = launch(
        """
        import torch, torch.distributed as dist
        import fr
        dist.init_process_group("gloo")
        work = dist.all_reduce(torch.ones(1), async_op=True)
        result(done())
        """
    )
    (record,) = [r for r in ran.result if r["kind"] == "collective"]
    assert record["state"] == "completed"


def test_work_without_a_future_still_behaves(launch):
    ran = launch(
        """
        import datetime
        import torch, torch.distributed as dist
        import fr
        dist.init_process_group("gloo")
        r = dist.get_rank()
        t = torch.full((2,), float(r))
        if r == 0:
            work = dist.isend(t, 1)
            assert isinstance(work, dist.Work)
            assert work.wait() is True
        else:
            assert dist.recv(t) == 0  # the source rank comes through the wrapper
            assert t.tolist() == [0.0, 0.0]
        out = torch.empty(1)
        work = dist.reduce_scatter_tensor(out, torch.ones(2), async_op=True)
        assert isinstance(work, dist.Work)
        work.wait()
        assert out.item() == 2
        text = ""
        if r == 0:
            try:
                dist.irecv(t, 1).wait(datetime.timedelta(milliseconds=200))
            except RuntimeError as error:
                text = str(error)
        dist.barrier() if not text else None
        result([text, done()])
        import os
        os._exit(0)
        """,
        n=2,
        check=False,
        env={"FR_TIMEOUT_S": "30"},
    )
    text, records = ran[0].result
    assert text
    assert [r["state"] for r in records if r["kind"] == "recv"] == ["failed"]


def test_meta_tensors_are_not_recorded(launch):
    (ran,) = launch(
        """
        import torch, torch.distributed as dist
        import fr
        from torch._subclasses.fake_tensor import FakeTensorMode
        dist.init_process_group("gloo")
        with FakeTensorMode():
            try:
                dist.all_reduce(torch.ones(3))
            except Exception:
                pass
        dist.all_reduce(torch.ones(4))
        result(done())
        """
    )
    assert [r["in_sizes"] for r in ran.result if r["kind"] == "collective"] == [[[4]]]


def test_many_tensors_are_cut_not_lost(launch):
    (ran,) = launch(
        """
        import torch, torch.distributed as dist
        import fr
        dist.init_process_group("gloo")
        dist.all_reduce_coalesced([torch.ones(2) for _ in range(400)])
        result(done())
        """
    )
    (r,) = [r for r in ran.result if r["kind"] == "collective"]
    assert r["in_numel"] == 800
    assert r["shape"][0] & 0xFFF == 400
    assert r["shape"][0] >> 25 & 1 == 1


def test_another_backend(launch):
    """The backend of torch's own tests: no options, Works that are done at once."""
    (ran,) = launch(
        """
        import torch, torch.distributed as dist
        import fr
        dist.init_process_group("fake", rank=0, world_size=4)
        dist.all_reduce(torch.ones(1))
        dist.all_gather_into_tensor(torch.empty(4), torch.ones(1))
        dist.reduce_scatter_tensor(torch.empty(1), torch.ones(4))
        dist.isend(torch.ones(2), 3).wait()
        dist.barrier()
        sub = dist.new_group([0, 2])
        dist.all_reduce(torch.ones(5), group=sub)
        result([done(), fr.status()])
        """
    )
    records, status = ran.result
    records = [r for r in records if r["kind"] != "lifecycle"]
    assert [r["op"] for r in records] == [
        "all_reduce",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "send",
        "barrier",
        "all_reduce",
    ]
    assert {r["state"] for r in records} == {"completed"}
    assert [g["n_ranks"] for g in status["groups"] if g["name"]] == [4, 2]


def test_debug_mode_of_torch(launch):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts wrappers around the backends."""
    ran = launch(
        """
        import torch, torch.distributed as dist
        import fr
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2))
        dist.barrier()
        result(done())
        dist.destroy_process_group()
        """,
        n=2,
        env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    )
    for r in ran:
        records = [x for x in r.result if x["kind"] == "collective"]
        assert [(x["op"], x["state"]) for x in records] == [
            ("all_reduce", "completed"),
            ("barrier", "completed"),
        ]


def test_the_tensor_reader_survives_what_is_no_tensor(launch):
    """Freed, foreign and unmapped memory: an answer or none, never a fault."""
    (rank,) = launch(
        """
        import ctypes, mmap, random
        import torch
        from fr import adapter
        adapter.load()
        adapter._library.fr_torch_tensor_reader.restype = ctypes.c_void_p
        reads = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t)
        read = reads(adapter._library.fr_torch_tensor_reader())
        out = ctypes.create_string_buffer(64)
        read(torch.ones(3, 5, dtype=torch.float16)._cdata, out, 64)
        texts = [out.value.decode()]
        for address in (0, 8, 2**47 - 8, 2**64 - 1, id(None), id(texts)):
            read(address, out, 64)
        random.seed(1)
        memory = mmap.mmap(-1, 8192)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        copy = ctypes.string_at(torch.ones(1, 1, 1, 1, 1, 1, 1)._cdata, 256)
        for i in range(2000):
            noise = bytearray(copy)
            for at in random.sample(range(256), 24):
                noise[at] = random.randrange(256)
            memory[0:256] = bytes(noise)
            assert read(start, out, 64) < 64
        memory[8192 - 100:] = copy[:100]
        texts.append(read(start + 8192 - 100, out, 16) < 16)
        result(texts)
        """
    )
    assert rank.code == 0, rank
    assert rank.result == ["tensor float16[3, 5] cpu", True], rank


STORES = {
    "tcp": ("init_method=f'tcp://localhost:{port}?rank=0&world_size=1'", "localhost-{port}-script"),
    "file": ("init_method='file://' + os.getcwd() + '/s', rank=0, world_size=1", "_s-"),
    "store": (
        "store=dist.PrefixStore('x', dist.TCPStore('localhost', port, 1, True)), rank=0, "
        "world_size=1",
        "localhost-{port}-script",
    ),
    "none": ("store=dist.HashStore(), rank=0, world_size=1", "local-script-{parent}"),
}


@pytest.mark.parametrize("kind", STORES)
def test_a_job_without_launcher_is_named_by_its_store_and_program(launch, kind):
    arguments, name = STORES[kind]
    (ran,) = launch(
        f"""
        import os, socket, torch.distributed as dist, fr
        with socket.socket() as s:
            s.bind(("localhost", 0))
            port = s.getsockname()[1]
        dist.init_process_group("gloo", {arguments})
        result([fr.status()["job"], port, os.getppid()])
        dist.destroy_process_group()
        """,
        n=0,
        env={"FR_JOB": ""},
    )
    job, port, parent = ran.result
    want = name.format(port=port, parent=parent)
    assert job == want if kind != "file" else want in job and job.endswith("-script"), job


@pytest.mark.parametrize("store", ["env://", "file"])
def test_the_ranks_of_a_run_share_a_number_that_another_run_has_not(launch, store, tmp_path):
    pytest.importorskip("zstandard")
    numbers = []
    for run in range(2):
        where = store if store == "env://" else f"file://{tmp_path}/store{run}"
        ranks = launch(
            f"""
            import torch.distributed as dist
            import fr, msgpack, os, zstandard
            dist.init_process_group("gloo", init_method="{where}", world_size=2,
                                    rank=int(os.environ["RANK"]))
            dist.barrier()
            with open(fr.dump(), "rb") as file:
                dump = msgpack.unpackb(zstandard.ZstdDecompressor().stream_reader(file).read())
            result(dump["identity"]["run"])
            dist.barrier()
            dist.destroy_process_group()
            """,
            n=2,
        )
        (number,) = {ran.result for ran in ranks}
        assert number != 0, ranks
        numbers.append(number)
    assert numbers[0] != numbers[1]
