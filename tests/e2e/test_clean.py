"""What processes that were killed leave behind goes, what belongs to the living stays."""

import os
import subprocess
import sys
import time

from conftest import FRTRACE

SCRIPT = """
import os, signal, sys
import fr
from fr import _fr
_fr.start()
fr.dump()
print("ready", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def start(scratch, job):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "TORCH_"))}
    env |= {"FR_DUMP_DIR": str(scratch / "dumps"), "FR_SHM_DIR": str(scratch), "FR_JOB": job}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=env | {"RANK": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_clean_removes_what_the_dead_left(scratch):
    killed, living = start(scratch, "killed"), start(scratch, "living")
    killed.communicate("\n", timeout=60)
    (directory,) = scratch.glob("fr-*")
    (directory / "note.txt").write_text("not fr's")
    (directory / "other.ring").write_text("no ring")
    env = os.environ | {"FR_SHM_DIR": str(scratch)}
    for removed in ("1 rings and 1 control pages", "0 rings and 0 control pages"):
        got = subprocess.run([FRTRACE, "--clean"], env=env, capture_output=True, text=True)
        assert got.returncode == 0, got
        assert f"removed {removed} of dead jobs" in got.stdout and "2 rings stay" in got.stdout
        names = sorted(path.name.split(".")[0] for path in directory.iterdir())
        assert names == ["living", "living", "note", "other"]
    living.communicate("\n", timeout=60)
    env["FR_SHM_DIR"] = str(scratch / "absent")
    got = subprocess.run([FRTRACE, "--clean"], env=env, capture_output=True, text=True)
    assert got.returncode == 3 and "No such file" in got.stderr


def test_temporary_files_of_the_dead_go_with_the_next_dump(scratch):
    dumps = scratch / "dumps"
    dumps.mkdir()
    old, fresh, foreign = (
        dumps / name
        for name in (".job.a0.r1.1.fr.77.tmp", ".job.a0.r2.1.fr.78.tmp", ".jobs.a0.r1.1.fr.77.tmp")
    )
    for path in (old, fresh, foreign):
        path.write_text("half a dump")
        if path != fresh:
            os.utime(path, (time.time() - 4000,) * 2)
    start(scratch, "job").communicate("\n", timeout=60)
    assert not old.exists() and fresh.exists() and foreign.exists()
