"""frtrace collect, dump and stacks over the nodes of one hung job, by each launcher."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import cluster
import pytest
from conftest import need

RANK = Path(__file__).parent / "rank.py"


def job_env(directory, **more):
    dumps = directory / "dumps"
    return cluster.outside(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(cluster.free_ports(1)[0]),
        FR_DUMP_DIR=str(dumps),
        FR_TIMEOUT_S="3",
        FR_WARN_S="2",
        FR_VERDICT="0",
        FR_CACHE_DIR=os.environ.get("FR_CACHE_DIR", str(Path.home() / ".cache" / "fr")),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
        **more,
    )


def frtrace(*args, env=None, cwd=None, timeout=120):
    return subprocess.run(
        [cluster.FRTRACE, *map(str, args)],
        env=env or cluster.outside(),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def assert_verdict(got, confidence="certain"):
    assert got.returncode == 1, got.stdout + got.stderr
    verdict = json.loads(got.stdout)["verdict"]
    assert (verdict["kind"], verdict["ranks"]) == ("missing", [3]), got.stdout
    assert verdict["confidence"] == confidence, got.stdout
    assert verdict["blamed"][0]["site"]["function"] == "load_batch", got.stdout


def nodes_of(directory):
    told = json.loads((directory / "nodes.json").read_text())
    assert told["schema"] == "frtrace.nodes/1"
    return {row["node"]: row for row in told["nodes"]}


def await_dumps(directory):
    cluster.wait_until("dumps of 4 ranks", lambda: len(list(directory.glob("dumps/*.fr"))) >= 4)


@pytest.fixture(scope="module")
def slurm_job(slurm):
    """The number of a job of two ranks on each of two nodes, which hangs; a directory of it."""
    home = slurm.scratch / "job"
    home.mkdir()
    script = home / "job.sh"
    script.write_text(f"#!/bin/sh\nexec srun --quiet {sys.executable} {RANK}\n")
    got = slurm.ask(
        "sbatch", "--parsable", "-N2", "--ntasks-per-node=2", f"--chdir={home}",
        f"--export=ALL,{exported(job_env(home))}", f"--output={home}/log", str(script),
    )  # fmt: skip
    number = got.strip()
    try:
        await_dumps(home)
        yield number, home
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(home / 'log').read_text()}") from None
    finally:
        subprocess.run(["scancel", "--full", number], env=slurm.env)
        cluster.wait_until("the job's end", lambda: not slurm.ask("squeue", "-h"))


def exported(env):
    names = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
    return ",".join(f"{k}={v}" for k, v in env.items() if k.startswith("FR_") or k in names)


def test_collect_by_srun(slurm, slurm_job, tmp_path):
    number, _ = slurm_job
    got = frtrace("collect", number, "--json", "-o", tmp_path / "c", env=slurm.env)
    assert_verdict(got)
    rows = nodes_of(tmp_path / "c")
    assert {n: row["ranks"] for n, row in rows.items()} == {"n1": [0, 1], "n2": [2, 3]}
    assert rows["n1"]["host"] == "n1"
    assert "2 of 2 nodes answered" in got.stderr
    assert all((tmp_path / "c" / n / f"{n}.frsum").exists() for n in rows)
    assert "3 whole by srun: " in got.stderr, got.stderr
    assert not [p for p in (tmp_path / "c").iterdir() if p.name.startswith(".")]
    again = frtrace("collect", number, "--json", "-o", tmp_path / "c", env=slurm.env)
    assert_verdict(again)
    assert "2 of 2 nodes have answered before" in again.stderr


def assert_live(got):
    assert got.returncode == 1, got.stdout + got.stderr
    assert " on 2 nodes: 4 of 4 ranks" in got.stdout.splitlines()[0], got.stdout
    assert "rank 3 by 1" in got.stdout and "MISSING    rank 3 never issued" in got.stdout
    assert "no more news" not in got.stdout and "no news" not in got.stdout, got.stdout


def test_live_by_srun(slurm, slurm_job, tmp_path):
    """And no step is left behind."""
    number, _ = slurm_job
    steps = slurm.ask("squeue", "-h", "-s", "-j", number).count("\n")
    assert_live(
        frtrace("live", number, "-1", "--launcher", "auto", env=slurm.env, cwd=slurm.scratch)
    )
    cluster.wait_until(
        "the end of its step",
        lambda: slurm.ask("squeue", "-h", "-s", "-j", number).count("\n") == steps,
    )


def test_variables_of_another_allocation_do_not_lead_astray(slurm, slurm_job, tmp_path):
    number, _ = slurm_job
    env = slurm.env | {"SLURM_JOB_ID": "999", "SLURM_NTASKS": "7", "SLURM_NODELIST": "n9"}
    assert_verdict(frtrace("collect", number, "--json", "-o", tmp_path / "c", env=env))


def test_dump_and_stacks_by_srun(slurm, slurm_job, tmp_path):
    number, home = slurm_job
    got = frtrace("dump", number, "--launcher", "srun", env=slurm.env, cwd=tmp_path)
    assert got.returncode == 0, got.stdout + got.stderr
    said = sorted(got.stdout.splitlines())
    for line, ranks in zip(said, ((0, 1), (2, 3)), strict=True):
        line = re.fullmatch(r"n\d: incident (\d+) of job (\d+): ranks (\d),(\d) dumped", line)
        assert line and (line[2], int(line[3]), int(line[4])) == (number, *ranks), said
        for rank in ranks:
            assert (home / "dumps" / f"{number}.a0.r{rank}.{line[1]}.fr").exists(), said
    got = frtrace("stacks", number, "--launcher", "auto", env=slurm.env, cwd=tmp_path)
    assert got.returncode == 0, got.stdout + got.stderr
    assert re.search(r"^3 +.*rank.py:\d+ load_batch", got.stdout, re.M), got.stdout
    assert "main threads of 4 ranks" in got.stdout, got.stdout
    assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def hung_job(nodes, home, name, **more):
    """Two ranks on each node, started here, under a name of its own; they hang."""
    home.mkdir()
    env = job_env(home, FR_JOB=name, WORLD_SIZE="4", LOCAL_WORLD_SIZE="2", **more)
    ranks = []
    for rank in range(4):
        node = list(nodes.homes)[rank // 2]
        own = env | {"RANK": str(rank), "LOCAL_RANK": str(rank % 2)}
        command = nodes.on(node, sys.executable, str(RANK))
        ranks.append(nodes.daemon(f"{name}-{rank}", command, env=own))
    try:
        await_dumps(home)
        yield env
    except AssertionError as error:
        raise AssertionError(f"{error}\n{nodes.logs()}") from None
    finally:
        for process in ranks:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def ssh_job(sshds):
    with hung_job(sshds, sshds.scratch / "job", "it's $HOME"):
        yield "it's $HOME"


def by_ssh(sshds, command, job, *more):
    return frtrace(command, job, f"--with=-F{sshds.config}", *more)


def test_collect_by_ssh(sshds, ssh_job, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# two nodes\nn1 slots=2\nn2 slots=2\n")
    got = by_ssh(sshds, "collect", ssh_job, "--hosts", hosts, "--json", "-o", tmp_path / "c")
    assert_verdict(got)
    assert {n: r["ranks"] for n, r in nodes_of(tmp_path / "c").items()} == {
        "n1": [0, 1],
        "n2": [2, 3],
    }


def test_a_node_that_does_not_answer_is_named_and_asked_again(sshds, ssh_job, tmp_path):
    """n2 is asked at a port where nobody is: of its ranks, the guilty one too, nothing is known."""
    good = sshds.config.read_text()
    broken = tmp_path / "broken"
    broken.write_text(re.sub(r"(Host n2\n.*\n) Port \d+", r"\1 Port 1", good))
    args = ["collect", ssh_job, "--hosts", "n1,n2", "-o", tmp_path / "c"]
    got = frtrace(*args, f"--with=-F{broken}")
    assert "node n2 did not answer (ssh: connect to host 127.0.0.1 port 1" in got.stdout, got.stdout
    got = frtrace("--json", tmp_path / "c")
    report = json.loads(got.stdout)
    silent = [row for row in report["input"]["nodes"] if not row["answered"]]
    assert [row["node"] for row in silent] == ["n2"]
    assert "Connection refused" in silent[0]["why"]
    assert report["verdict"]["confidence"] == "possible", got.stdout
    got = frtrace(*args, "--json", f"--with=-F{sshds.config}")
    assert_verdict(got)
    assert "1 of 2 nodes have answered before" in got.stderr


def test_a_node_that_never_answers_costs_the_timeout_only(sshds, ssh_job, tmp_path):
    slow = tmp_path / "frtrace"
    hang = '[ "$(hostname)" = n2 ] && exec sleep 600'
    slow.write_text(f'#!/bin/sh\n{hang}\nexec {cluster.FRTRACE} "$@"\n')
    slow.chmod(0o755)
    got = by_ssh(
        sshds, "collect", ssh_job, "--hosts", "n1,n2", "--frtrace", slow, "--timeout", "2",
        "-o", tmp_path / "c",
    )  # fmt: skip
    assert "node n2 did not answer (no answer within 2 s)" in got.stdout, got.stdout + got.stderr
    assert nodes_of(tmp_path / "c")["n2"]["seconds"] < 20


@pytest.mark.parametrize("launcher", ["pdsh", "clush"])
def test_collect_by_tools_that_put_names_before_lines(sshds, ssh_job, tmp_path, launcher):
    need(launcher)
    arguments = f"-F{sshds.config} -q"
    env = cluster.outside(PDSH_SSH_ARGS_APPEND=arguments)
    more = [f"--with=-o{arguments}"] if launcher == "clush" else []
    got = frtrace(
        "collect", ssh_job, "--hosts", "n1,n2", "--launcher", launcher, *more, "--json",
        "-o", tmp_path / "c", env=env,
    )  # fmt: skip
    assert_verdict(got)


def test_live_by_ssh(sshds, ssh_job):
    assert_live(by_ssh(sshds, "live", ssh_job, "-1", "--hosts", "n1,n2"))
    cluster.wait_until("the helpers' end", lambda: not helpers())


def helpers():
    """Of live on the nodes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_text(errors="replace").split("\0")
            if str(cluster.FRTRACE) in words[:1] and "--lines" in words:
                found.append(int(entry.name))
    return found


def test_dump_by_ssh_and_names_that_are_no_hosts(sshds, ssh_job):
    got = by_ssh(sshds, "dump", ssh_job, "--hosts", "n1,n2")
    assert got.returncode == 0, got.stdout + got.stderr
    assert "ranks 0,1 dumped" in got.stdout and "ranks 2,3 dumped" in got.stdout
    for bad in ("-oProxyCommand=x", "n1;x", "$(x)"):
        got = by_ssh(sshds, "dump", ssh_job, "--hosts", f"n1,{bad}")
        assert got.returncode == 2 and "not the name of a node" in got.stderr, got.stderr


KUBECTL = """#!/usr/bin/env python3
import json, os, sys
args = sys.argv[1:]
open(os.environ["KUBECTL_LOG"], "a").write(json.dumps(args) + "\\n")
pods = json.load(open(os.environ["KUBECTL_PODS"]))
if args[:1] == ["get"]:
    wanted = args[args.index("-l") + 1]
    items = [p for p in pods["items"] if wanted in p["labels"]]
    print(json.dumps({"items": items}))
else:
    assert args[0] == "exec", args
    rest = args[args.index("--") + 1:]
    node = args[3]
    pid = pods["holders"][node]
    spaces = ["--mount", "--uts", "--pid"]
    os.execvp("nsenter", ["nsenter", "--target", str(pid), *spaces, "--", *rest])
"""


def test_collect_by_kubectl(sshds, ssh_job, tmp_path):
    """A stand-in that knows pods by label and runs a command in the namespaces of one."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").write_text(KUBECTL)
    (programs / "kubectl").chmod(0o755)
    label = "jobset.sigs.k8s.io/jobset-name=train"
    pod = {"labels": [label], "spec": {"containers": [{"name": "node"}, {"name": "sidecar"}]}}
    phases = {"n1": "Running", "n2": "Running", "n3": "Pending"}
    items = [
        pod | {"metadata": {"name": n}, "status": {"phase": phase}} for n, phase in phases.items()
    ]
    (tmp_path / "pods").write_text(json.dumps({"items": items, "holders": sshds.homes}))
    env = cluster.outside(
        KUBECTL_LOG=str(tmp_path / "log"),
        KUBECTL_PODS=str(tmp_path / "pods"),
        KUBERNETES_SERVICE_HOST="10.0.0.1",
    )
    env["PATH"] = f"{programs}:{Path(sys.executable).parent}:{env['PATH']}"
    got = frtrace("collect", "train", "-n", "ml", "--json", "-o", tmp_path / "c", env=env)
    assert_verdict(got)
    rows = nodes_of(tmp_path / "c")
    assert rows["n3"]["why"] == "the pod is Pending"
    calls = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert calls[-1][:6] == ["exec", "-n", "ml", calls[-1][3], "-c", "node"], calls[-1]


def test_rings_of_another_mount_namespace_are_found(sshds, ssh_job, tmp_path):
    """As of containers: from outside, through /proc/<pid>/root."""
    got = frtrace("collect", ssh_job, "--launcher", "local", "--json", "-o", tmp_path / "c")
    assert_verdict(got)
    (row,) = nodes_of(tmp_path / "c").values()
    assert row["ranks"] == [0, 1, 2, 3]


def test_nobody_runs_that_job(sshds, tmp_path):
    got = frtrace("collect", "nosuch", "--launcher", "local", "-o", tmp_path / "c")
    assert got.returncode == 3, got.stdout + got.stderr
    assert "no ring" in got.stderr, got.stderr
    got = frtrace("dump", "nosuch")
    assert got.returncode == 3 and "nosuch" not in got.stdout, got.stdout
