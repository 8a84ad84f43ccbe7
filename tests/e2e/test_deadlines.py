"""A call site that takes long by right alarms once and then no more; a hang elsewhere is dumped."""

import json
import re
import subprocess

import pytest
from conftest import FRTRACE, HERE

SCRIPT = HERE / "deadlines_job.py"
RANKS = 3


def run(launch, saves, end="clean", **env):
    job = launch(end, RANKS, script=SCRIPT, env=env | {"E2E_SAVES": str(saves)})
    if end == "clean":
        assert set(job.await_exit().values()) == {0}, job.log()
    return job


def saves_of(job):
    """The row of the call site at which all wait for rank 0."""
    status = json.loads((job.scratch / "status.json").read_text())
    line = SCRIPT.read_text().splitlines().index("    dist.all_reduce(torch.ones(1))  # @save") + 1
    rows = [r for r in status["deadlines"] if r["site"].startswith(f"{SCRIPT.name}:{line} ")]
    assert len(rows) == 1, status["deadlines"]
    return rows[0], status


def false_alarms(job):
    """Incidents that were over again."""
    return len(re.findall(r"incident \d+ is over", job.log()))


def test_a_long_wait_alarms_once_and_a_hang_is_dumped(launch, scratch):
    job = run(launch, 3, "hang")
    job.await_evidence(incident=2)
    assert false_alarms(job) == 1, job.log()
    row, status = saves_of(job)
    assert row["absent_ms"] >= 2500 and row["false_dumps"] == 1, row
    assert (status["false_dumps"], status["false_warnings"]) == (1, 1), status
    job.trace("--incident", "2").expect("missing", [0])
    page = job.scratch / "page.html"
    subprocess.run([FRTRACE, job.dumps, "--incident", "2", "-o", page], check=False)
    (data,) = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', page.read_text(), re.S)[1])
    shown = [[data["s"][site[0]], *site[1:]] for site in data["deadlines"]["shown"]]
    (learned,) = [site for site in shown if site[0] == row["site"]]
    assert learned[2] >= 2500 and learned[5:7] == [1, 1], shown
    command = [FRTRACE, "doctor", "--json", "--job", "job", "--shm-dir", scratch / "shm"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    (found,) = [c for c in json.loads(said.stdout)["checks"] if c["id"] == "deadlines"]
    assert found["state"] == "warn", found
    pattern = rf"FR_TIMEOUT_S is 2 s: 1 dump at what went on; {re.escape(row['site'])} took \d"
    assert re.match(pattern, found["value"]), found
    assert "the deadlines of its call site are doubled" in job.log()
    assert re.search(r"no progress for 2\.\d s: all_reduce .* rank 0 has not come", job.log())


def test_fr_adapt_0_dumps_each_time(launch):
    job = run(launch, 2, FR_ADAPT="0")
    assert false_alarms(job) == 2, job.log()
    status = json.loads((job.scratch / "status.json").read_text())
    assert status["deadlines"] == [] and status["false_dumps"] == 2, status


def test_what_was_learned_outlives_a_restart(launch, scratch):
    kept = scratch / "deadlines"
    first = run(launch, 3, FR_DEADLINES=str(kept))
    assert false_alarms(first) == 1, first.log()
    written = kept.read_text()
    assert written.startswith("fr deadlines 1\n") and f"{SCRIPT.name}:" in written
    second = run(launch, 3, FR_DEADLINES=str(kept), FR_JOB="second")
    assert false_alarms(second) == 0, second.log()
    assert second.incidents() == []


@pytest.mark.parametrize("what", ["torn", "foreign"])
def test_a_file_that_is_not_whole_is_said_once(launch, scratch, what):
    kept = scratch / "deadlines"
    before = "fr deadlines 1\ndeadlines_job.py, 3 ranks\n12ab" if what == "torn" else "import os\n"
    kept.write_text(before)
    job = run(launch, 0, FR_DEADLINES=str(kept))
    assert job.log().count("FR_DEADLINES: ") == 1, job.log()
    assert (kept.read_text() == before) == (what == "foreign")
