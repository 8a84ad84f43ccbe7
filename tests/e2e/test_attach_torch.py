"""`frtrace attach` to ranks of torch that wait in gloo; the debugger of fr.breakpoint()."""

import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path

import pytest
from conftest import FRTRACE, QUIET, Job, wait_until

pytest.importorskip("torch")
SCRIPT = Path(__file__).parent / "attach_job.py"


def command(scratch, rank, *args):
    shm = scratch / "shm"
    return [FRTRACE, "attach", "job", "--rank", str(rank), "--shm-dir", str(shm), *args]


def attach(scratch, rank, *args):
    return subprocess.run(command(scratch, rank, *args), capture_output=True, text=True, timeout=60)


@pytest.fixture
def job(scratch):
    jobs = []

    def run(fault, ranks, env):
        jobs.append(Job(scratch, fault, ranks, script=SCRIPT, env=env))
        return jobs[-1]

    yield run
    for j in jobs:
        j.kill()


def test_a_rank_that_waits_in_gloo(job, scratch):
    j = job("wait", 2, {"FR_ATTACH": "1", **QUIET})

    def value(expression):
        return attach(scratch, 0, "-e", expression)

    # The first operation of a process imports more of torch before it waits.
    wait_until("rank 0 in gloo", lambda: value("grads, model.bias.sum()").returncode == 0)
    got = value("grads").stdout
    assert re.search(
        r"'w': \[Tensor\(shape=\(2, 3\), dtype=torch.float32, device=meta, data_ptr=0x0\)\]", got
    ), got
    assert "'b': (tensor([1., 1.]),)" in got, got
    got = value("model.bias.sum().item()")
    assert (got.stdout, got.stderr) == ("2.0\n", "")
    assert value("{n: tuple(p.shape) for n, p in vars(model).items()}").stdout == (
        "{'bias': (2,), 'weight': (2, 3)}\n"
    )
    for expression in ("model.weight.sum()", "torch.ones(2, device='meta')", "[model.weight + 1]"):
        assert "would run on meta, which may hang" in value(expression).stderr
    assert "would communicate" in value("dist.all_reduce(model.bias)").stderr
    assert re.fullmatch(r"<Model instance at 0x\w+>\n", value("model").stdout)
    (scratch / "go").touch()
    assert j.await_exit() == {0: 0, 1: 0}, j.log()


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, program):
        self.own, theirs = pty.openpty()
        self.text = ""
        self.process = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)

    def type(self, line):
        os.write(self.own, line.encode() + b"\n")

    def await_text(self, wanted, limit_s=60):
        end = time.monotonic() + limit_s
        while wanted not in self.text:
            assert time.monotonic() < end, f"waited for {wanted!r}: {self.text}"
            if select.select([self.own], [], [], 0.5)[0]:
                try:
                    self.text += os.read(self.own, 4096).decode()
                except OSError:
                    assert wanted in self.text, self.text
        seen, self.text = self.text.split(wanted, 1)
        return seen


def in_breakpoint(j, scratch):
    wait_until("fr.breakpoint()", lambda: "waits at" in j.log())
    assert "for: frtrace attach job --rank 1 --pdb" in j.log()
    assert attach(scratch, 0, "--pdb").returncode == 3  # that rank waits for this one
    assert "FR_ATTACH=1" in attach(scratch, 1, "-e", "1").stderr


def expect_done(j, scratch):
    assert j.await_exit() == {0: 0, 1: 0}, j.log()
    for rank in range(2):
        assert (scratch / f"done.{rank}").read_text() == "the line after 6.0"
    assert not j.evidence(), j.log()
    assert "no progress" not in j.log()


def test_a_debugger_in_one_rank(job, scratch):
    j = job("breakpoint", 2, {"FR_WARN_S": "0.5", "FR_TIMEOUT_S": "1"})
    in_breakpoint(j, scratch)
    # 3 s in the debugger: three times FR_TIMEOUT_S, in which a hang would be warned of and dumped.
    begun = time.monotonic()
    t = Terminal(command(scratch, 1, "--pdb"))
    try:
        t.await_text("(pdb) ")
        t.type("p seen.tolist(), rank")
        t.await_text("([1.0, 1.0, 1.0], 1)")
        wait_until("3 s in the debugger", lambda: time.monotonic() - begun > 3)
        assert not j.evidence() and "no progress" not in j.log(), j.log()
        t.await_text("(pdb) ")
        t.type("n")
        t.await_text("(pdb) ")
        t.type("p after")
        t.await_text("'the line after'")
        t.type("c")
        t.await_text("rank 1 goes on")
        assert t.process.wait(timeout=60) == 0
    finally:
        t.process.kill()
        t.process.wait()
        os.close(t.own)
    expect_done(j, scratch)


@pytest.mark.parametrize("how", ["q\n", ""])
def test_leaving_the_debugger_lets_the_rank_go_on(job, scratch, how):
    j = job("breakpoint", 2, QUIET)
    in_breakpoint(j, scratch)
    got = subprocess.run(
        command(scratch, 1, "--pdb"), input=how, capture_output=True, text=True, timeout=60
    )
    assert got.returncode == 0 and "(pdb) " in got.stdout, got
    expect_done(j, scratch)
