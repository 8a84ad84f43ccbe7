"""When fr is imported, and what was done before: everything ends up recorded all the same."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("adapter_built")

ORDERS = {
    "first": """
        import fr
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        """,
    "after torch": """
        import torch, torch.distributed as dist
        import fr
        dist.init_process_group("gloo")
        """,
    "names imported before": """
        import torch, torch.distributed as dist
        from torch.distributed import init_process_group
        import fr
        init_process_group("gloo")
        """,
    "after init": """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        early = dist.new_group([0])
        import fr
        """,
    "inside a function, late": """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2))
        def later():
            import fr
        later()
        import fr
        """,
    "explicit rank, no environment": """
        import os
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            del os.environ[name]
        import fr
        import torch, torch.distributed as dist
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        """,
}


@pytest.mark.parametrize("order", ORDERS)
def test_order(launch, order):
    (ran,) = launch(
        ORDERS[order]
        + """
        def work():
            dist.all_reduce(torch.ones(3))
        work()
        sub = dist.new_group([0], group_desc="sub")
        dist.all_reduce(torch.ones(4), group=sub)
        result([done(), fr.status()])
        dist.destroy_process_group()
        """,
        fork=False,
    )
    records, status = ran.result
    assert status["python"]["problems"] == []
    assert status["rank"] == 0
    assert status["world_size"] == 1
    collectives = [r for r in records if r["kind"] == "collective"]
    assert [r["in_sizes"] for r in collectives] == [[[3]], [[4]]]
    assert any(f[2] == "work" for f in collectives[0]["stack"])
    groups = {g["desc"]: g for g in status["groups"]}
    assert groups["default_pg"]["n_ranks"] == 1
    assert groups["sub"]["enqueued"] == 1


def test_importing_torch_later_goes_on_as_always(launch):
    (ran,) = launch(
        """
        import sys
        import fr
        finders = len(sys.meta_path)
        import importlib.util
        spec = importlib.util.find_spec("json")
        assert spec is not None
        import torch.distributed.distributed_c10d as c10d
        import torch.distributed as dist
        import importlib.machinery, inspect
        assert type(c10d.__spec__.loader) is importlib.machinery.SourceFileLoader
        assert c10d.__spec__.loader.exec_module.__func__ is (
            importlib.machinery.SourceFileLoader.exec_module)
        assert dist.init_process_group is c10d.init_process_group
        assert "backend" in inspect.signature(dist.init_process_group).parameters
        assert dist.init_process_group.__doc__
        assert "init_process_group" in inspect.getsource(c10d)
        assert not any(type(f).__module__.startswith("fr") for f in sys.meta_path)
        result(True)
        """,
        n=0,
    )
    assert ran.result


def test_hooks_that_fail_leave_the_import_whole(launch):
    (ran,) = launch(
        """
        import sys

        class Shut(list):
            def insert(self, *_):
                raise RuntimeError("no finder today")

        sys.meta_path = Shut(sys.meta_path)
        import fr
        sys.meta_path = list(sys.meta_path)
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        result(fr.status()["python"]["problems"])
        """,
        fork=False,
    )
    assert any("no finder today" in p for p in ran.result), ran.result


def test_options_set_after_the_imports(launch):
    """As in PyTorch's tutorial: os.environ between the imports and init_process_group."""
    (ran,) = launch(
        """
        import os
        import fr
        import torch, torch.distributed as dist
        os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"
        os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
        dist.init_process_group("gloo")
        result(fr.status())
        """
    )
    assert ran.result["options"]["FR_BUFFER_SIZE"]["source"] == "TORCH_NCCL_TRACE_BUFFER_SIZE"
    assert ran.result["options"]["FR_DUMP_ON_TIMEOUT"]["value"] == "0"
    assert ran.result["records"] >= 2000


def test_switched_off_torch_is_untouched(launch):
    (ran,) = launch(
        """
        import fr
        import torch, torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        result([fr.status()["on"], hasattr(dist.init_process_group, "__wrapped__"),
                c10d._register_process_group.__module__])
        """,
        env={"FR_ENABLE": "0"},
    )
    assert ran.result[0] is False
    assert not (ran.result[2] or "").startswith("fr")
    assert ran.err.count("[fr") == 0


def test_buffer_size_0_is_off(launch):
    (ran,) = launch(
        """
        import torch, torch.distributed as dist
        import fr
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        result([fr.status()["on"], len(done())])
        """,
        env={"FR_BUFFER_SIZE": "0"},
    )
    assert ran.result == [False, 0]


def test_init_that_fails_is_recorded(launch):
    (ran,) = launch(
        """
        import datetime
        import torch, torch.distributed as dist
        import fr
        try:
            dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=1, world_size=2,
                                    timeout=datetime.timedelta(seconds=1))
        except Exception as error:
            pass
        result(done())
        """,
        n=1,
    )
    (call,) = [r for r in ran.result if r["op"] == "init_process_group"]
    assert call["state"] == "failed"
    assert call["error"]


@pytest.mark.parametrize("begun", ["fork", "spawn", "forkserver"])  # the last: of Python 3.14
def test_dataloader_workers_are_silent(launch, begun):
    (ran,) = launch(
        """
        import os
        import torch, torch.distributed as dist
        import fr
        from torch.utils.data import DataLoader, Dataset

        class Numbers(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                fr.note(f"item {i}")
                with fr.span("load"):
                    return torch.tensor([i, int(fr.status()["on"]), os.getpid()])

        if __name__ == "__main__":
            dist.init_process_group("gloo")
            before = len(done())
            loader = DataLoader(Numbers(), num_workers=2, batch_size=2,
                                multiprocessing_context=os.environ["BEGUN"])
            rows = [row for batch in loader for row in batch.tolist()]
            dist.all_reduce(torch.ones(1))
            result([rows, os.getpid(), [r["op"] for r in done()[before:]]])
        """,
        env={"BEGUN": begun},
        fork=False,
    )
    rows, pid, ops = ran.result
    assert [r[0] for r in rows] == list(range(8))
    assert all(on == 0 for _, on, _ in rows)
    assert all(p != pid for _, _, p in rows)
    assert ops == ["all_reduce"]


def test_a_forked_child_becomes_a_rank_of_its_own(launch):
    (ran,) = launch(
        """
        import json, os
        import torch, torch.distributed as dist
        import fr

        def rank(where):
            store = dist.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            def in_child():
                dist.all_reduce(torch.ones(2))
            in_child()
            with open(where, "w") as out:
                json.dump([done(), fr.status()], out)
            dist.destroy_process_group()

        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        done()
        pid = os.fork()
        if pid == 0:
            rank("child.json")
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
        with open("child.json") as file:
            result([json.load(file), done()])
        """,
    )
    (child, status), parent = ran.result
    (mine,) = [r for r in child if r["kind"] == "collective"]
    assert (mine["in_sizes"], mine["seq"]) == ([[2]], 1)
    assert mine["group_name"] == "0"
    assert any(f[2].endswith("in_child") for f in mine["stack"])
    assert mine["state"] == "completed"
    assert "adapter" in status["layers"]["torch"]
    assert [r["in_sizes"] for r in parent if r["kind"] == "collective"] == [[[1]]]
