"""`frtrace check` on real ranks: one machine, and nodes whose links are cut or slow."""

import json
import os
import re
import subprocess
import sys

import conftest
import nodes
import pytest

needs_nodes = pytest.mark.skipif(bool(nodes.missing()), reason=nodes.missing())
SHAPED = (
    "htb default 1 && tc class add dev eth0 parent 1: classid 1:1 htb rate 40gbit quantum 60000"
)


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "TORCH"))}
    if "FR_CACHE_DIR" in os.environ:
        kept["FR_CACHE_DIR"] = os.environ["FR_CACHE_DIR"]
    return kept | {"OMP_NUM_THREADS": "1"} | {k: str(v) for k, v in more.items()}


class Check:
    """A rank per node; what it printed. plant: Python that runs in each rank before the check."""

    def __init__(self, cluster, *args, plant="", absent=(), rails=1):
        script = f"import sys; import fr.check as check\n{plant}\nsys.exit(check.main())"
        command = [
            sys.executable,
            "-c",
            script,
            "--json",
            "--deadline",
            "6",
            "--slow",
            "0.1",
            "-v",
            *args,
        ]
        ranks = []
        for i in range(rails * len(cluster)):
            if i in absent:
                continue
            env = {"RANK": i, "WORLD_SIZE": rails * len(cluster), "LOCAL_RANK": i % rails}
            env |= {"MASTER_ADDR": "n0", "MASTER_PORT": 29511, "GLOO_SOCKET_IFNAME": "eth0"}
            how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            node = cluster[i // rails]
            ranks.append(node.start(command, env=environment(**env), cwd="/", **how))
        got = [rank.communicate(timeout=conftest.PATIENCE_S * 2) for rank in ranks]
        self.log = "\n".join(err for _, err in got)
        self.status = ranks[0].returncode
        try:
            self.report = json.loads(got[0][0])
        except ValueError:
            raise AssertionError(f"{got[0][0]}\n{self.log}") from None
        self.texts = [f["text"] for f in self.report["findings"]]
        self.said = json.dumps(self.report, indent=1) + self.log

    def found(self):
        return [
            (f["kind"], f["what"], f["way"], tuple(f["nodes"]), tuple(f["others"]))
            for f in self.report["findings"]
        ]


def drop(one, other):
    """What `one` sends to `other` goes to a station that does not exist."""
    nowhere = ["lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"]
    one.run(["ip", "neigh", "replace", other.address, *nowhere])


def slow(one, *others, rate="20mbit"):
    """What `one` sends to the others."""
    if subprocess.run(["tc", "-V"], capture_output=True).returncode:
        pytest.skip("needs tc")
    shape = f"tc qdisc add dev eth0 root handle 1: {SHAPED}"
    shape += f" && tc class add dev eth0 parent 1: classid 1:2 htb rate {rate}"
    for other in others:
        shape += " && tc filter add dev eth0 parent 1: protocol ip u32"
        shape += f" match ip dst {other.address}/32 flowid 1:2"
    got = one.run(["sh", "-c", shape], check=False)
    if got.returncode:
        pytest.skip(f"this kernel shapes no traffic: {got.stderr}")


def test_one_machine_that_is_fine(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    got = subprocess.run(
        [*torchrun, "-m", "fr.check", "--slow", "0.1"],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert got.returncode == 0, got.stdout + got.stderr
    assert re.fullmatch(
        r"check: all fine: 3 ranks on 1 nodes, gloo, \d+ rounds, [\d.]+ s\n", got.stdout
    ), got.stdout
    assert not list(tmp_path.iterdir())


@needs_nodes
def test_a_dead_and_a_slow_link_of_six_nodes():
    with nodes.Cluster(6) as cluster:
        drop(cluster[2], cluster[5])
        slow(cluster[3], cluster[4])
        check = Check(cluster)
    assert check.status == 1, check.said
    assert sorted(check.found()) == [
        ("link", "dead", "out", ("n2",), ("n5",)),
        ("link", "slow", "out", ("n3",), ("n4",)),
    ], check.said
    assert check.report["exclude"] == "n[2-5]"


@needs_nodes
def test_a_slow_border_in_one_direction():
    with nodes.Cluster(5) as cluster:
        for node in cluster[0], cluster[1]:
            slow(node, *(cluster[i] for i in (2, 3, 4)))
        check = Check(cluster)
    assert check.status == 1, check.said
    assert check.found() == [("border", "slow", "out", ("n0", "n1"), ("n2", "n3", "n4"))], (
        check.said
    )
    assert re.match(r"n\[0-1\] → n\[2-4\]: 0\.00\d+ GB/s, median ", check.texts[0]), check.said
    assert check.report["exclude"] == "n[0-1]"


HANG = """
import time, torch.distributed as dist
exchange = check.STEPS["pair"]
def hangs(test, store):
    if test["ranks"][test["index"]] == 1:
        honest = dist.all_reduce
        dist.all_reduce = lambda tensor: time.sleep(1000)
    return exchange(test, store)
check.STEPS |= {"pair": hangs, "group": hangs}
"""
ENDS = """
import os
exchange = check.STEPS["pair"]
def ends(test, store):
    if test["ranks"][test["index"]] == 2:
        os.abort()
    return exchange(test, store)
check.STEPS |= {"pair": ends, "group": ends}
"""


@needs_nodes
def test_a_rank_that_hangs_inside_is_named_by_the_verdict_and_leaves_no_process():
    with nodes.Cluster(4) as cluster:
        check = Check(cluster, plant=HANG)
        assert not [pid for node in cluster for pid in node.pids()]
        assert not [f for node in cluster for f in node.run(["ls", "/dev/shm"]).stdout.split()]
    assert check.status == 1, check.said
    assert check.found() == [("node", "dead", "both", ("n1",), ("n0", "n2", "n3"))], check.said
    assert re.search(
        r"n1: no data between it and the 3 others tried: rank 1 never issued all_reduce #1 of "
        r"default_pg; rank 0 waits there \(rank 0 is n0, rank 1 is n1, and stands at <string>:\d+ ",
        check.texts[0],
    ), check.said


@needs_nodes
def test_a_process_that_ends_on_one_rail_and_a_rank_that_never_comes():
    with nodes.Cluster(3) as cluster:
        check = Check(cluster, "--join", "10", plant=ENDS, rails=2, absent=(5,))
    assert check.status == 1, check.said
    assert check.texts == [
        "rank 5: no answer: the node, its process, or its way to n0",
        "n1, rail 0: no data between it and the 2 others tried: n1/0: the process of the test "
        "ended: signal 6",
    ], check.said
    assert (check.report["exclude"], check.report["rails"]) == ("n1", 2), check.said
