"""A dump directory without room: frtrace reads what the ranks could not write there."""

import os
import subprocess

import pytest
from conftest import frtrace, wait_until


@pytest.fixture
def small(scratch):
    """small(name, kib) -> a directory on a file system of that size."""
    mounted = []

    def make(name, kib):
        path = scratch / name
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", path]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("needs the right to mount")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", "-l", path])


@pytest.mark.parametrize("spare", ["fallback", "rings"])
def test_a_full_dump_directory(launch, scratch, small, spare):
    dumps = small("full", 12)  # one dump or two
    (scratch / "tmp").mkdir()
    tmp = scratch / "tmp" if spare == "fallback" else small("full-tmp", 4)
    env = {"FR_DUMP_DIR": str(dumps), "TMPDIR": str(tmp), "FR_JOB": "full"}
    job = launch("skip", 3, env=env)
    last = "they go to" if spare == "fallback" else "frtrace reads the ring in"
    wait_until("the message", lambda: last in job.log())
    env = {"TMPDIR": tmp, "FR_SHM_DIR": scratch / "shm"}

    there = f"fr-dumps-{os.geteuid()}/full" if spare == "fallback" else f"shm/fr-{os.geteuid()}"

    def read():
        trace = frtrace(dumps, **env)
        texts = [f["text"] for f in trace.report.get("findings", ())]
        places = [text for text in texts if "is read from" in text and text.endswith(there)]
        whole = trace.report and trace.report["input"]["read"] == 3
        return trace if whole and places else None

    wait_until("all evidence", read).expect("missing", [2], op="all_reduce", seq=4)
