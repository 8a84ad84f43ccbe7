"""Jobs that stop outside of all operations: no rank waits in one, and none issues one."""

import json
import os
import re
import signal
import subprocess
import sys
import time

from conftest import HERE, frtrace, wait_until

SCRIPT = HERE / "silence_job.py"


def line_of(mark):
    lines = SCRIPT.read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# @{mark}")]
    return line


def plain(text):
    """Without the folders of the script."""
    return text.replace(f"{HERE}/", "")


def texts(trace):
    found = [text for b in trace.verdict["blamed"] for text in b["evidence"]]
    return plain("\n".join(found + [f["text"] for f in trace.report["findings"]]))


def test_all_wait_for_a_pipe(launch):
    job = launch("next_shard", 3, script=SCRIPT).await_evidence()
    trace = job.trace()
    trace.expect("missing", [0, 1, 2])
    assert {b["why"] for b in trace.verdict["blamed"]} == {"idle"}
    assert {b["site"]["line"] for b in trace.verdict["blamed"]} == {line_of("pipe")}
    place = f"next_shard() at silence_job.py:{line_of('pipe')}"
    assert f"all are in {place}" in plain(trace.verdict["summary"])
    warning = r"no operation issued for [12]\.\d s \(usually every [\d.]+ ms\); rank \d is in "
    warning += re.escape(place) + ", asleep in read of pipe:"
    wait_until("a warning", lambda: re.search(warning, job.log()))


def test_all_wait_for_a_stale_lock(launch, scratch):
    lock = scratch / "lock"
    lock.touch()
    old = time.time() - 3 * 3600
    os.utime(lock, (old, old))
    trace = launch("build_kernel", 2, script=SCRIPT).await_evidence().trace()
    trace.expect("missing", [0, 1])
    assert f"build_kernel() at silence_job.py:{line_of('lock')}" in plain(trace.verdict["summary"])
    assert re.search(
        r"waits for the lock file .*/lock to go; it still exists.* stale", texts(trace)
    )


def test_ranks_at_several_places_are_each_told(launch, scratch):
    (scratch / "lock").touch()
    trace = launch("two_places", 3, script=SCRIPT).await_evidence().trace()
    trace.expect("undecided", [])
    assert f"rank 0 is in next_shard() at silence_job.py:{line_of('pipe')}" in texts(trace)
    assert f"are in build_kernel() at silence_job.py:{line_of('lock')}" in texts(trace)


def test_a_silence_that_ends_is_learned(launch, scratch):
    job = launch("pause", 2, script=SCRIPT).await_evidence()
    (scratch / "go").touch()
    assert set(job.await_exit().values()) == {0}
    assert re.search(r"incident 1 is over: the job went on after \d+\.\d s", job.log()), job.log()
    assert "the deadline of such a silence is doubled" in job.log()


def test_a_server_is_warned_of_and_not_dumped(launch, scratch):
    job = launch("serve", 2, script=SCRIPT)
    said = re.compile(r"no operation issued for .*; rank \d awaits requests in epoll_p?wait")
    wait_until("a warning", lambda: said.search(job.log()))
    rings = scratch / "shm"
    silent = wait_until("silence", lambda: silence_of(rings) >= 5 and frtrace(rings))
    assert silent.verdict["kind"] == "undecided", silent
    assert not job.evidence(), job.log()
    assert len(said.findall(job.log())) == 1, job.log()


def silence_of(rings):
    """Seconds for which the ranks were silent, as frtrace says."""
    said = re.search(r"issued nothing for ([\d.]+) s", json.dumps(frtrace(rings).report))
    return float(said[1]) if said else 0


BEFORE = HERE / "before_job.py"


def old_lock(scratch):
    (scratch / "lock").touch()
    old = time.time() - 3 * 3600
    os.utime(scratch / "lock", (old, old))


def test_all_wait_before_the_first_group(launch, scratch):
    old_lock(scratch)
    job = launch("012", 3, script=BEFORE, env={"FR_JOB": "before"})
    wait_until("rings", lambda: len(job.rings()) == 3)
    wait_until("silence", lambda: is_silent(frtrace(scratch / "shm")))
    for process in job.processes.values():
        os.kill(process.pid, signal.SIGINT)
    job.await_exit()
    trace = job.trace()
    trace.expect("missing", [0, 1, 2])
    assert "all are in build_kernel() at before_job.py:" in plain(trace.verdict["summary"])


def is_silent(trace):
    return trace.report and "wait in no operation" in trace.verdict["summary"]


def test_two_wait_before_the_first_group_and_the_third_for_them(launch, scratch):
    old_lock(scratch)
    job = launch("01", 3, script=BEFORE, env={"FR_JOB": "before"})
    wait_until("evidence", lambda: set(job.evidence()) == {0, 1, 2})
    trace = job.trace()
    trace.expect("missing", [0, 1])
    assert "never entered init_process_group" in trace.verdict["summary"]
    assert re.search(r"waits for the lock file .*/lock to go; .* stale", texts(trace))


CHILD = """
import os, subprocess, sys, time
import fr
from fr import _fr
_fr.start()
child = "import fr, time; from fr import _fr; time.sleep(3); print(_fr.generation())"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip())
"""


def test_a_child_of_a_rank_is_no_rank(scratch):
    env = os.environ | {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}
    env |= {"FR_TIMEOUT_S": "1", "FR_SHM_DIR": str(scratch), "FR_DUMP_DIR": str(scratch / "d")}
    got = subprocess.run([sys.executable, "-c", CHILD], env=env, capture_output=True, text=True)
    assert got.stdout.strip() == "0", got
