"""Jobs over nodes that share no directory."""

import os
import re
import signal
import subprocess
import sys
import time

import conftest
import nodes
import pytest
from conftest import frtrace, wait_until

pytestmark = pytest.mark.skipif(bool(nodes.missing()), reason=nodes.missing())


@pytest.fixture
def cluster(request):
    with nodes.Cluster(getattr(request, "param", 2)) as made:
        yield made


def test_nodes_share_a_link_and_no_directory(cluster):
    a, b = cluster
    for node in cluster:
        write = node.start(["sh", "-c", "hostname > here"], cwd=cluster.disk)
        assert write.wait(timeout=30) == 0
        node.run(["sh", "-c", "hostname > /dev/shm/here"])
        assert node.run(["cat", f"{cluster.disk}/here", "/dev/shm/here"]).stdout.split() == [
            node.name,
            node.name,
        ]
        assert (node.disk / "here").read_text().strip() == node.name
    listen = (
        "import socket; s = socket.create_server(('{0}', 4000)); print(flush=True); "
        "print(s.accept()[0].recv(9).decode())"
    )
    heard = a.start(["python3", "-c", listen.format(a.name)], stdout=-1, text=True)
    assert heard.stdout.readline() == "\n"
    say = "import socket; socket.create_connection(('n0', 4000), 2).send(b'hello')"
    b.link(False)
    assert b.run(["python3", "-c", say], check=False).returncode != 0
    b.link(True)
    # The address that nobody answered for is asked for again in a while.
    wait_until("the link", lambda: b.run(["python3", "-c", say], check=False).returncode == 0)
    assert heard.communicate(timeout=30)[0] == "hello\n"
    sleeper = b.start(["sleep", "1000"])
    b.close()
    assert sleeper.wait(timeout=30) < 0


class NodesJob:
    """Two ranks on each of two nodes. Their clocks are one machine's: times of files compare."""

    def __init__(self, cluster, *, torchrun=False, env=None, node_env=None):
        self.cluster = cluster
        self.started = []
        world = 2 * len(cluster)
        for i, node in enumerate(cluster):
            base = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "TORCH_"))}
            base |= {
                "FR_DUMP_DIR": str(cluster.disk / "dumps"),
                "FR_JOB": "job",
                "FR_TIMEOUT_S": "600",
                "FR_WARN_S": "600",
                "FR_VERDICT": "0",
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
            }
            base |= (env or {}) | (node_env or {}).get(i, {})
            if "FR_CACHE_DIR" in os.environ:
                base["FR_CACHE_DIR"] = os.environ["FR_CACHE_DIR"]
            script = [sys.executable, str(conftest.HERE / "nodes_job.py")]
            if torchrun:
                launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", len(cluster)]
                launcher += ["--nproc-per-node", 2, "--node-rank", i, "--master-addr", "n0"]
                launcher += ["--master-port", 29500]
                self._start(node, launcher + script[1:], base, "torchrun")
                continue
            for local in (0, 1):
                rank = {"RANK": 2 * i + local, "LOCAL_RANK": local, "WORLD_SIZE": world}
                rank |= {"LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "n0", "MASTER_PORT": 29500}
                base |= {k: str(v) for k, v in rank.items()}
                self._start(node, script, dict(base), f"rank{2 * i + local}")

    def _start(self, node, command, env, name):
        with (node.disk / f"log.{name}").open("w") as log:
            # The node's directory is known by this name only inside.
            self.started.append(
                node.start(command, cwd=self.cluster.disk, env=env, stdout=log, stderr=log)
            )

    def await_lists(self):
        """Until each rank knows that its node has an endpoint and the addresses of the others."""
        for i, node in enumerate(self.cluster):
            ups = [node.disk / f"up.{2 * i + local}" for local in (0, 1)]
            self.wait(f"the list on {node.name}", lambda ups=ups: all(p.exists() for p in ups))

    def wait(self, what, condition, timeout=conftest.PATIENCE_S):
        try:
            return wait_until(what, condition, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def log(self):
        logs = [p for node in self.cluster for p in sorted(node.disk.glob("log.*"))]
        return "\n".join(f"--- {p.parent.name} {p.name}\n{p.read_text()}" for p in logs)

    def go(self, what, *nodes):
        # Ranks that import torch late may have made an incident of the start.
        dumps = (p for n in self.cluster for p in (n.disk / "dumps").glob("job.a0.r*.*.fr"))
        self.before = max((int(path.name.split(".")[3]) for path in dumps), default=0)
        for node in nodes or self.cluster:
            (node.disk / "go.new").write_text(what)
            (node.disk / "go.new").rename(node.disk / "go")

    def owner(self, node, ranks):
        """The rank that has the node's endpoint."""
        texts = {r: (node.disk / f"up.{r}").read_text() for r in ranks}
        return next((r for r, text in texts.items() if text.startswith("UDP 10.77.")), None)

    def dump(self, node, rank, incident):
        return node.disk / "dumps" / f"job.a0.r{rank}.{incident}.fr"

    def await_dumps(self, ranks):
        """Of the first incident since go()."""
        files = [self.dump(self.cluster[r // 2], r, self.before + 1) for r in ranks]
        self.wait(f"dumps of {ranks}", lambda: all(path.exists() for path in files))
        return [path.stat().st_mtime_ns / 1e9 for path in files]

    def pid(self, rank):
        return self.started[rank].pid


def reasons(*nodes):
    report = frtrace(*(node.disk / "dumps" for node in nodes)).report
    return {r["rank"]: r["reason"] for r in report["ranks"]}


@pytest.mark.parametrize("torchrun", [False, True], ids=["ranks", "torchrun"])
def test_a_stall_on_one_node_is_dumped_on_all_within_a_second(cluster, torchrun):
    a, b = cluster
    # Only the ranks of the first node notice it.
    patience = {0: {"FR_TIMEOUT_S": "2"}}
    job = NodesJob(cluster, torchrun=torchrun, env={"FR_TEST_GUILTY": "3"}, node_env=patience)
    job.await_lists()
    assert job.owner(a, (0, 1)) is not None, job.log()
    assert job.owner(b, (2, 3)) is not None, job.log()
    job.go("hang")
    times = job.await_dumps(range(4))
    assert max(times) - min(times) < 1, times
    print(f"last dump {max(times) - min(times):.3f} s after the first")
    said = reasons(a, b)
    assert all("node n0: no progress for" in said[rank] for rank in (2, 3)), said
    trace = frtrace(a.disk / "dumps", b.disk / "dumps").expect("missing", [3], op="all_reduce")
    assert trace.report["input"]["silent_nodes"] == [], trace


@pytest.mark.parametrize("how", ["stopped", "unlinked"])
def test_a_node_that_does_not_answer_is_named(cluster, how):
    a, b = cluster
    job = NodesJob(cluster, env={"FR_TEST_GUILTY": "3", "FR_TIMEOUT_S": "2"})
    job.await_lists()
    if how == "stopped":
        b.signal(signal.SIGSTOP)
    else:
        b.link(False)
    job.go("hang", a)
    times = job.await_dumps((0, 1))
    assert max(times) - min(times) < 1, times
    trace = frtrace(a.disk / "dumps")
    assert trace.report["input"]["silent_nodes"] == [
        {"host": "n1", "ranks": [2, 3], "n_ranks": 2, "has_files": False}
    ], trace
    assert trace.verdict["confidence"] == "possible", trace
    text = subprocess.run([conftest.FRTRACE, a.disk / "dumps"], capture_output=True, text=True)
    assert "node n1 (ranks 2,3) did not answer within" in text.stdout, text.stdout
    if how == "stopped":  # what was sent has waited for it
        b.signal(signal.SIGCONT)
        job.await_dumps((2, 3))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_another_rank_takes_over_the_endpoint(cluster, number):
    a, b = cluster
    job = NodesJob(cluster)
    job.await_lists()
    first = job.owner(b, (2, 3))
    os.kill(job.pid(first), number)
    other = 5 - first
    job.wait("the next owner", lambda: job.owner(b, (other,)) is not None)
    job.go("dump 0", a)
    times = job.await_dumps((0, 1, other))
    assert max(times) - min(times) < 1, times
    assert "node n0: by hand" in reasons(b)[other]
    assert frtrace(a.disk / "dumps").report["input"]["silent_nodes"] == []


def test_nodes_go_their_own_way_where_the_store_ends(cluster):
    """The list is in memory: the end of the store's server, rank 0, is no end of messages."""
    a, b = cluster
    job = NodesJob(cluster)
    job.await_lists()
    os.kill(job.pid(0), signal.SIGKILL)
    job.wait("the next owner", lambda: job.owner(a, (1,)) is not None)
    job.go("dump 2", b)
    times = job.await_dumps((1, 2, 3))
    assert max(times) - min(times) < 1, times


def test_a_job_over_nodes_ends_as_it_would_without(cluster):
    job = NodesJob(cluster)
    job.await_lists()
    job.go("end")
    for process in job.started:
        assert process.wait(timeout=conftest.PATIENCE_S) == 0, job.log()
    assert "[fr " not in job.log(), job.log()


def test_nodes_that_issue_different_operations_are_told_of(cluster):
    a, b = cluster
    job = NodesJob(cluster)
    job.await_lists()
    job.go("SUM", a)
    job.go("MAX", b)
    job.wait(
        "the operation",
        lambda: all((n.disk / f"done.{2 * i}").exists() for i, n in enumerate(cluster)),
    )
    begun = time.monotonic()
    job.wait("a word of it", lambda: "mismatch" in job.log())
    print(f"told after {time.monotonic() - begun:.1f} s")
    assert time.monotonic() - begun < 10
    (line,) = [text for text in job.log().splitlines() if "mismatch" in text]
    issued = (
        r"ranks {0},{1} issued all_reduce at nodes_job.py:\d+ \(<module>\) on n{2}, reduce op {3}"
    )
    sides = [issued.format(0, 1, 0, "SUM"), issued.format(2, 3, 1, "MAX")]
    whole = "mismatch: nothing tells which is right: in #4 of default_pg "
    assert re.search(whole + sides[1] + "; " + sides[0], line), line
    job.go("end")


@pytest.mark.parametrize(
    "what, said, least_s, most_s",
    [("stop", "; all members have come", 4, 14), ("miss", "; rank {} has not come", 14, 27)],
)
def test_who_has_not_come_on_another_node_is_known(cluster, what, said, least_s, most_s):
    """Where all wait 3 s by right, a hang is dumped after 30 s, but where the nodes know of each
    other that all have come after 5 s, that one sleeps after 15 s."""
    a, b = cluster
    job = NodesJob(cluster, env={"FR_WARN_S": "2", "FR_TIMEOUT_S": "5"})
    job.await_lists()
    job.go("save")
    done = [n.disk / f"done.{2 * i + k}" for i, n in enumerate(cluster) for k in (0, 1)]
    job.wait("the operation", lambda: all(path.exists() for path in done))
    guilty = 5 - job.owner(b, (2, 3))  # a rank that does not answer for its node
    begun = time.time()
    job.go(f"{what} {guilty}")
    times = job.await_dumps((0, 1, 5 - guilty))
    print(f"{what}: dumped after {min(times) - begun:.1f} s")
    assert least_s < min(times) - begun < most_s, job.log()
    assert said.format(guilty) in job.log(), job.log()
