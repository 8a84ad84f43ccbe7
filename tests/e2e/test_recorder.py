"""The recorder in hard places: forked workers, full or unwritable directories, triggers by hand."""

import json
import os
import signal
import subprocess

import pytest
from conftest import QUIET, frtrace, wait_until


def test_forked_loader_workers_stay_silent(launch, scratch):
    job = launch("loader", 2, env=QUIET)
    assert job.await_exit() == {0: 0, 1: 0}, job.log()
    assert (job.evidence(), job.rings()) == ({}, [])
    names = json.loads((scratch / "names.json").read_text())
    reduces = [name for name in names if "all_reduce" in name]
    assert len(reduces) == 3 + 10, names
    assert not any("worker" in name for name in names)


@pytest.fixture
def full_tmpfs(scratch):
    if os.geteuid() != 0:
        pytest.skip("needs root for mount")
    mount = scratch / "full"
    mount.mkdir()
    got = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], capture_output=True, text=True
    )
    if got.returncode:
        pytest.skip(f"mount: {got.stderr.strip()}")
    with (mount / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(1 << 16))
        except OSError:
            pass
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


def test_shared_memory_full(launch, full_tmpfs):
    """Anonymous memory instead, said once; the evidence comes all the same."""
    job = launch("skip", 3, env={"FR_SHM_DIR": str(full_tmpfs)}).await_evidence()
    job.trace().expect("missing", [2], op="all_reduce", seq=4, waiting={"meet": [0, 1]})
    for rank in range(3):
        said = [line for line in (job.logs / str(rank)).read_text().splitlines() if "[fr " in line]
        assert sum("anonymous" in line for line in said) == 1, said


def test_dump_directory_unwritable(launch, scratch):
    """Root may write anywhere, so the directory lies below a file. The next candidate is used."""
    (scratch / "file").touch()
    tmp = scratch / "tmp"
    tmp.mkdir()
    env = {"FR_DUMP_DIR": str(scratch / "file" / "dumps"), "TMPDIR": str(tmp)}
    job = launch("skip", 2, env=env)
    found = wait_until("two dumps", lambda: len(dumps := list(tmp.rglob("*.fr"))) == 2 and dumps)
    frtrace(*found).expect("missing", [1], op="all_reduce", seq=4, waiting={"meet": [0]})
    assert str(tmp) in job.log()


def test_dump_directory_vanishes(launch, scratch):
    """Removed while the job runs: made again, and training goes on."""
    job = launch("twice", 2).await_evidence()
    job.dumps.rename(scratch / "gone")
    (scratch / "first").touch()
    job.await_evidence()
    (scratch / "second").touch()
    assert job.await_exit() == {0: 0, 1: 0}, job.log()


def test_triggers_by_hand(launch, scratch):
    """A byte into FR_PIPE, then the signal of FR_SIGNAL; no timeout, and the job lives on."""
    pipe = scratch / "trigger-"
    env = {"FR_TIMEOUT_S": "600", "FR_PIPE": str(pipe), "FR_SIGNAL": "USR2"}
    job = launch("skip", 3, env=env)
    job.await_live("missing")
    with open(f"{pipe}0.pipe", "wb", buffering=0) as trigger:
        trigger.write(b"1")
    job.await_evidence()
    (first,) = job.incidents()
    job.trace().expect("missing", [2], op="all_reduce", seq=4)

    os.kill(job.pid(1), signal.SIGUSR2)
    job.await_evidence(incident=first + 1)
    job.trace().expect("missing", [2], op="all_reduce", seq=4)
    assert all(process.poll() is None for process in job.processes.values())
