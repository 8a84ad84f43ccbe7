"""examples/cluster, on the two-node Slurm."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import cluster
import pytest
from test_collect import RANK, exported, job_env

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cluster"


@pytest.fixture
def hooks(slurm):
    """The prolog and epilog of the examples, as a site has them; their spool directory."""
    spool = slurm.scratch / "fr-spool"
    for hook in ("prolog", "epilog"):
        slurm.set_hook(
            hook, f"#!/bin/sh\nFRTRACE={cluster.FRTRACE} FR_SPOOL={spool} exec {EXAMPLES}/{hook}\n"
        )
    yield spool
    for hook in ("prolog", "epilog"):
        slurm.set_hook(hook, "#!/bin/sh\n")


def submit(slurm, home, *arguments):
    """The example's job with our ranks; its number."""
    home.mkdir()
    env = job_env(home)
    env.pop("FR_VERDICT")
    return slurm.ask(
        "sbatch", "--parsable", f"--chdir={home}", f"--output={home}/log",
        f"--export=ALL,FRTRACE={cluster.FRTRACE},{exported(env)}", *arguments,
    ).strip()  # fmt: skip


def await_end(slurm, home):
    def ended():
        return not slurm.ask("squeue", "-h")

    try:
        cluster.wait_until("the job's end", ended)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(home / 'log').read_text()}") from None


def kill_ranks(home):
    """As the kernel does when memory is short: none of them sees another one die."""
    ranks = []
    for pid in cluster.left_below(home):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(os.fsencode(sys.executable)):
            ranks.append(pid)
    assert len(ranks) == 4, ranks
    for sig in (signal.SIGSTOP, signal.SIGKILL):
        for pid in ranks:
            os.kill(pid, sig)


def test_leftovers_of_killed_ranks_are_kept_and_memory_is_freed(slurm, hooks):
    home = slurm.scratch / "killed"
    number = submit(slurm, home, EXAMPLES / "train.sbatch", sys.executable, RANK)
    cluster.wait_until("dumps", lambda: len(list(home.glob("dumps/*.fr"))) >= 4)
    kill_ranks(home)
    await_end(slurm, home)
    cluster.wait_until("both epilogs", lambda: len(list(hooks.glob(f"{number}.n?.verdict"))) == 2)
    for node in ("n1", "n2"):
        kept = hooks / f"{number}.{node}"
        assert len(list(kept.glob("*/*.ring"))) == 2, list(kept.rglob("*"))
        cluster.wait_until(f"no rings on {node}", lambda n=node: not rings_on(slurm, n))
        assert (hooks / f"{number}.{node}.doctor").exists()


def rings_on(slurm, node):
    command = slurm.on(node, "find", "/dev/shm", "-name", "*.ring")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_job_that_ends_well_leaves_nothing(slurm, hooks):
    home = slurm.scratch / "good"
    number = submit(slurm, home, EXAMPLES / "train.sbatch", sys.executable, RANK, "good")
    await_end(slurm, home)
    cluster.wait_until("both prologs", lambda: len(list(hooks.glob(f"{number}.n?.doctor"))) == 2)
    assert not list(hooks.glob(f"{number}.n?.verdict")), (home / "log").read_text()
    assert not [ring for node in ("n1", "n2") for ring in rings_on(slurm, node)]


def test_before_the_time_limit_the_evidence_is_collected(slurm):
    home = slurm.scratch / "late"
    number = submit(slurm, home, EXAMPLES / "train.sbatch", sys.executable, RANK)
    cluster.wait_until("dumps", lambda: len(list(home.glob("dumps/*.fr"))) >= 4)
    slurm.ask("scancel", "--batch", "--signal=USR1", number)
    await_end(slurm, home)
    log = (home / "log").read_text()
    assert "the time limit is near" in log and "2 of 2 nodes answered" in log, log
    assert "rank 3 never issued" in log, log
    assert (home / "dumps-collected" / "nodes.json").exists()


def test_the_kubernetes_job_has_room_in_dev_shm():
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all((EXAMPLES / "job.yaml").read_text()))
    (job,) = [d for d in documents if d["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"
