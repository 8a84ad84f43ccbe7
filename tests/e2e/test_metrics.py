"""The metrics of a node's jobs for Prometheus, from the rings of real gloo ranks."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from conftest import FRTRACE, QUIET, free_port, wait_until

MONITORING = Path(__file__).resolve().parents[2] / "examples" / "monitoring"
SERIES = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')

JOB = """
import os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import fr
scratch, rank = Path(os.environ["E2E_SCRATCH"]), int(os.environ["RANK"])
job = os.environ["FR_JOB"]
dist.init_process_group("gloo")
tp = dist.new_group([0, 1], group_desc="tp")
for step in range(20):
    fr.step(step)
    if rank == 1 and step >= 10:
        time.sleep(0.03)
    dist.all_reduce(torch.ones(1000))
    dist.broadcast(torch.ones(10), 0, group=tp)
(scratch / f"done.{job}.{rank}").touch()
while not (scratch / f"go.{job}").exists():
    time.sleep(0.02)
if rank == 0:
    dist.all_reduce(torch.ones(1))
while True:
    signal.pause()
"""


# More groups and operations than have series of their own; that needs no torch.
MANY = """
import sys
import fr
from fr import _fr
_fr.start()
groups = [fr.group(f"g{i}", range(8), desc=f"group {i}") for i in range(24)]
for _ in range(3):
    for group in groups:
        for k in range(9):
            fr.end(fr.begin(group, f"op_{k}"))
fr.step(3)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def start(launch, scratch):
    def run(name, **kwargs):
        script = scratch / "metrics_job.py"
        script.write_text(JOB)
        for path in scratch.glob(f"*.{name}*"):
            path.unlink() if path.is_file() else None
        job = launch("", 2, script=script, env=QUIET | {"FR_JOB": name}, **kwargs)
        wait_until("20 steps", lambda: len(list(scratch.glob(f"done.{name}.*"))) == 2)
        return job

    return run


def command(scratch, *args):
    return [FRTRACE, "metrics", "--shm-dir", scratch / "shm", *args]


def series(text):
    """{(name, {label: value} without node as sorted tuple): value}"""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = SERIES.fullmatch(line).groups()
        labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")
        key = name, tuple(sorted((k, v) for k, v in labels if k != "node"))
        assert key not in found, key
        found[key] = float(value)
    return found


def value(found, name, **labels):
    return found.get((name, tuple(sorted(labels.items()))))


def look(scratch, **env):
    got = subprocess.run(
        command(scratch), env=os.environ | env, capture_output=True, text=True, timeout=60
    )
    assert got.returncode == 0 and not got.stderr, got
    return got.stdout, series(got.stdout)


def is_clean(text):
    if not shutil.which("promtool"):
        return
    got = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert got.returncode == 0 and not got.stdout + got.stderr, got


def test_two_jobs_a_hang_a_death_and_a_restart(start, scratch):
    one, two = start("one"), start("two")
    text, found = look(scratch)
    is_clean(text)
    for job in ("one", "two"):
        assert value(found, "fr_ranks", fr_job=job) == 2
        assert value(found, "fr_ranks_expected", fr_job=job) == 2
        assert value(found, "fr_incidents_total", fr_job=job) == 0
        assert value(found, "fr_operations_total", fr_job=job, group="default_pg",
                     op="all_reduce") == 40  # fmt: skip
        assert value(found, "fr_operations_total", fr_job=job, group="tp", op="broadcast") == 40
        assert value(found, "fr_operation_bytes_total", fr_job=job, group="default_pg",
                     op="all_reduce") == 40 * 4000  # fmt: skip
        assert value(found, "fr_wait_seconds_count", fr_job=job, group="default_pg") == 40
        assert 8 <= value(found, "fr_late_arrivals_total", fr_job=job, gpu="1") <= 20
        for gpu in "01":
            assert value(found, "fr_step", fr_job=job, gpu=gpu) == 19
            assert value(found, "fr_oldest_in_flight_seconds", fr_job=job, gpu=gpu) == 0
            assert value(found, "fr_watchdog_age_seconds", fr_job=job, gpu=gpu) < 60
    assert not any(name == "fr_verdict" for name, _ in found)
    assert len(found) < 600

    # rank 0 waits where rank 1 never comes
    (scratch / "go.one").touch()
    wait_until(
        "a verdict",
        lambda: value(look(scratch, FR_WARN_S="1")[1], "fr_verdict", fr_job="one", kind="missing"),
    )
    text, found = look(scratch, FR_WARN_S="1")
    is_clean(text)
    assert value(found, "fr_oldest_in_flight_seconds", fr_job="one", gpu="0") > 1
    assert value(found, "fr_frontier_lag_operations", fr_job="one", group="default_pg") == 1
    assert not any(name == "fr_verdict" and ("fr_job", "two") in key for name, key in found)

    os.kill(one.processes[1].pid, signal.SIGKILL)
    one.await_exit([1])
    found = look(scratch)[1]
    assert value(found, "fr_ranks", fr_job="one") == 1
    assert value(found, "fr_ranks_expected", fr_job="one") == 2
    assert value(found, "fr_ranks", fr_job="two") == 2

    # the rings that the first attempt has left are no ranks of the second
    one.kill()
    start("one", attempt=1)
    found = look(scratch)[1]
    assert value(found, "fr_ranks", fr_job="one") == 2
    assert value(found, "fr_ranks_expected", fr_job="one") == 2
    two.kill()
    assert value(look(scratch)[1], "fr_ranks", fr_job="two") == 0


def test_a_node_has_at_most_600_series(scratch):
    env = {k: v for k, v in os.environ.items() if not k.startswith("FR_")} | QUIET
    env |= {"FR_SHM_DIR": str(scratch / "shm"), "FR_JOB": "big", "FR_DUMP_DIR": str(scratch)}
    env |= {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", MANY], env=env | {"RANK": str(r), "LOCAL_RANK": str(r)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for r in range(8)
    ]  # fmt: skip
    try:
        assert [r.stdout.readline() for r in ranks] == ["ready\n"] * 8
        text, found = look(scratch)
    finally:
        for r in ranks:
            r.kill()
            r.communicate()
    is_clean(text)
    assert len(found) <= 600
    counts = {k: v for (name, k), v in found.items() if name == "fr_operations_total"}
    assert sum(counts.values()) == 8 * 3 * 24 * 9  # none is left out
    assert {dict(k)["group"] for k in counts} >= {"other", "group 0"}
    assert {dict(k)["op"] for k in counts} >= {"other", "op_0"}
    assert value(found, "fr_ranks", fr_job="big") == 8


def test_counters_go_on_over_a_restart(start, listening, scratch):
    def calls():
        with urllib.request.urlopen(listening, timeout=20) as reply:
            found = series(reply.read().decode())
        return value(found, "fr_operations_total", fr_job="one", group="tp", op="broadcast")

    start("one").kill()
    assert calls() == 40
    start("one", attempt=1)
    assert calls() == 80


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_file_is_whole_and_goes_with_its_writer(start, scratch, number):
    start("one")
    path = scratch / "prom" / "fr.prom"
    path.parent.mkdir()
    writer = subprocess.Popen(command(scratch, "-o", path, "--every", "0.1"))
    try:
        wait_until("the file", path.exists)
        first = path.stat().st_ino
        wait_until("another one", lambda: path.exists() and path.stat().st_ino != first)
        text = path.read_text()
        found = series(text)
        # looking again counts nothing twice
        assert value(found, "fr_operations_total", fr_job="one", group="tp", op="broadcast") == 40
        assert value(found, "fr_wait_seconds_count", fr_job="one", group="tp") == 40
        assert not [line for line in text.splitlines() if len(line.split()) == 3 and line[0] != "#"]
    finally:
        writer.send_signal(number)
        assert writer.wait(timeout=20) == 0
    assert not list(path.parent.iterdir())


def test_what_cannot_be_written_or_bound_is_said(scratch):
    absent = scratch / "absent" / "fr.prom"
    for args, status, words in (
        (["-o", absent], 3, "No such file"),
        (["-o", absent, "--every", "1"], 3, "No such file"),
        (["--every", "1"], 2, "--every needs -o FILE or --listen"),
        (["--listen", "127.0.0.1:nothing"], 3, "nothing"),
    ):
        got = subprocess.run(command(scratch, *args), capture_output=True, text=True, timeout=30)
        assert got.returncode == status and words in got.stderr, got


@pytest.fixture
def listening(scratch):
    writer = subprocess.Popen(
        command(scratch, "--listen", "127.0.0.1:0"), stderr=subprocess.PIPE, text=True
    )
    yield writer.stderr.readline().split()[-1]
    writer.terminate()
    with writer:
        assert writer.wait(timeout=20) == 0


def test_it_answers_over_http(start, listening):
    start("one")
    with urllib.request.urlopen(listening, timeout=20) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = reply.read().decode()
    is_clean(text)
    assert value(series(text), "fr_ranks", fr_job="one") == 2
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(listening.replace("/metrics", "/etc/passwd"), timeout=20)
    refused.value.close()


def test_a_real_prometheus_scrapes_it(start, listening, scratch):
    if not shutil.which("prometheus"):
        pytest.skip("Debian's package prometheus is not installed")
    start("one")
    port, target = free_port(), listening.split("/")[2]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "fr_alerts.yml")],
        "scrape_configs": [{"job_name": "fr", "static_configs": [{"targets": [target]}]}],
    }
    (scratch / "prometheus.yml").write_text(json.dumps(config))
    server = subprocess.Popen(
        ["prometheus", f"--config.file={scratch}/prometheus.yml",
         f"--storage.tsdb.path={scratch}/data", f"--web.listen-address=127.0.0.1:{port}"],
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=5) as r:
                return json.load(r)["data"]
        except OSError:
            return None

    try:
        got = wait_until("fr_ranks", lambda: (ask("query?query=fr_ranks") or {}).get("result"))
        assert [s["value"][1] for s in got] == ["2"] and got[0]["metric"]["fr_job"] == "one"
        rules = ask("rules")["groups"][0]["rules"]
        assert len(rules) == 7 and all(r["health"] != "err" for r in rules)
        # Prometheus can run every query of the dashboard
        board = json.loads((MONITORING / "grafana.json").read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$job", ".*").replace("$node", ".*")
                assert ask("query?query=" + urllib.parse.quote(expr)) is not None, expr
    finally:
        server.terminate()
        server.wait(timeout=20)


def test_promtool_passes_the_alerts():
    if not shutil.which("promtool"):
        pytest.skip("promtool (Debian's package prometheus) is not installed")
    for args in (["check", "rules", "fr_alerts.yml"], ["test", "rules", "fr_alerts_test.yml"]):
        got = subprocess.run(["promtool", *args], cwd=MONITORING, capture_output=True, text=True)
        assert got.returncode == 0, got.stdout + got.stderr


def test_what_the_examples_ask_for_is_told(start, scratch):
    start("one")
    told = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in look(scratch)[1]}
    told |= {"fr_verdict"}  # only while an operation is stuck
    texts = [(MONITORING / name).read_text() for name in ("fr_alerts.yml", "grafana.json")]
    asked = set(re.findall(r"\bfr_(?!job\b)[a-z_]+[a-z]\b", re.sub(r"fr_wait_seconds_bucket",
                "fr_wait_seconds", " ".join(texts))))  # fmt: skip
    assert asked - {"fr_alerts"} <= told
