"""Helpers of the Python tests: real processes, real gloo ranks, one JSON result per rank."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import uuid

import interpreters
import pytest
import torch_fork

PRELUDE = """
import atexit as _atexit, json as _json, os as _os, time as _time
# torch aborts ("terminate called without an active exception") where a worker of gloo drops the
# last reference to a tensor while Python is being finalized; nothing tells when it has.
_atexit.register(_time.sleep, 0.2)
def result(value):
    with open(_os.environ["FR_TEST_RESULT"], "w") as _out:
        _json.dump(value, _out)
def done():
    '''Records, once what was waited for has also been seen to end.'''
    import time
    from fr import _fr
    for _ in range(3000):
        records = _fr.records()
        if all(r["state"] not in ("enqueued", "started") for r in records if r["group"]):
            break
        time.sleep(0.01)
    return records
"""


class Ran:
    """What became of one rank."""

    def __init__(self, rank, process, path):
        self.rank = rank
        self.out, self.err = process.communicate(timeout=90)
        self.code = process.returncode
        self.result = json.loads(path.read_text()) if path.exists() else None

    def __repr__(self):
        return f"rank {self.rank}: exit {self.code}\n{self.out}\n{self.err}"


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="session")
def adapter_built():
    """Builds the torch adapter once, before any rank has to wait for it."""
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-m", "fr", "--build-adapter"], check=True, timeout=200)


def launcher(tmp_path_factory, interpreter):
    """launch(script, n=1, env={...}, check=True) -> [Ran...]; n=0: no rank variables. Ranks that
    import torch before fr are forked from a process that has, where that is the same to them."""

    def run(script, n=1, env=None, check=True, args=(), python=("-u",), fork=True):
        where = tmp_path_factory.mktemp("ranks")
        path = where / "script.py"
        path.write_text(PRELUDE + textwrap.dedent(script))
        base = {k: v for k, v in os.environ.items() if not k.startswith(("FR_", "TORCH_"))}
        base.update(
            {
                "FR_DUMP_DIR": str(where / "dumps"),
                "FR_SHM_DIR": str(where),
                "FR_JOB": f"t-{uuid.uuid4().hex[:8]}",
                "OMP_NUM_THREADS": "1",
            }
        )
        if "FR_CACHE_DIR" in os.environ:
            base["FR_CACHE_DIR"] = os.environ["FR_CACHE_DIR"]
        port = _free_port()
        processes = []
        for rank in range(max(n, 1)):
            own = dict(base, FR_TEST_RESULT=str(where / f"result.{rank}"))
            if n:
                own.update(
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    WORLD_SIZE=str(n),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                )
            own.update(interpreter.env | (env or {}))
            command = [interpreter.executable, *python, str(path), *args]
            forked = fork and torch_fork.fits(command, own)
            processes.append(
                (torch_fork.Forked if forked else subprocess.Popen)(
                    command,
                    env=own,
                    cwd=where,
                    text=True,
                    errors="replace",
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        try:
            ran = [
                Ran(rank, process, where / f"result.{rank}")
                for rank, process in enumerate(processes)
            ]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        if check:
            assert all(r.code == 0 for r in ran), ran
        for r in ran:
            r.dir = where
        return ran

    return run


@pytest.fixture(scope="session")
def launch(tmp_path_factory):
    return launcher(tmp_path_factory, interpreters.OWN)
