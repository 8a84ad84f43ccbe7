"""What `frtrace doctor` says of the processes of a running job."""

import json
import subprocess

from conftest import FRTRACE, QUIET


def test_the_ranks_of_a_running_job(launch, scratch):
    job = launch(
        "skip",
        2,
        env=QUIET | {"FR_TIMEOUT_S": "600", "NCCL_P2P_DISABLE": "1"},
        rank_env={1: {"NCCL_IB_TIMEOUT": "22"}},
        fork=False,
    )
    job.await_live("missing")
    got = subprocess.run(
        [FRTRACE, "doctor", "--json", "--job", "job", "--shm-dir", scratch / "shm"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    report = json.loads(got.stdout)
    assert (report["job"], report["ranks"]) == ("job", [0, 1])
    checks = {c["id"]: c for c in report["checks"]}
    said = {i: (c["state"], c["value"]) for i, c in checks.items()}
    assert said["debugging"] == ("warn", "NCCL_P2P_DISABLE=1")
    assert said["environment"] == ("warn", "NCCL_IB_TIMEOUT: unset of rank 0, 22 of rank 1")
    assert said["master_port"][0] == "ok" and "of this job listens at" in said["master_port"][1]
    assert said["master_reached"][0] == "ok" and said["master_reached"][1].endswith(" answers")
    assert said["versions"][0] == "ok" and "torch 2." in said["versions"][1], said["versions"]
    assert said["dump_dir"][1].endswith(f"free in {job.dumps}"), said["dump_dir"]
    assert said["watchdogs"][0] == "ok", said["watchdogs"]
    got = subprocess.run(
        [FRTRACE, "doctor", "--shm-dir", scratch / "shm"], capture_output=True, text=True
    )
    assert "no job: this process's environment (--job of: job)" in got.stdout, got.stdout
    # being looked at does the job no harm
    job.await_live("missing").expect("missing", [1])
