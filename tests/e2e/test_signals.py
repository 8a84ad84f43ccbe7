"""Signals that the program handles itself: it goes on, leaves its loop, or saves and ends."""

import os
import re
import signal
import subprocess
import time

import pytest
from conftest import HERE, wait_until

SCRIPT = HERE / "signals_job.py"
HANDLER = """
#include <signal.h>
volatile int told;
static void on_signal(int number) { told = number; }
void handle(int number) { signal(number, on_signal); }
"""
WAYS = ["python_handler", "wakeup_fd", "c_handler", "asynchronous"]


@pytest.fixture
def signalled(launch, scratch):
    """signalled(what, ranks) -> a job of three ranks that trained and then got the signal."""

    def start(what, ranks, number=signal.SIGTERM):
        if what.startswith("c_handler"):
            compiler = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", scratch / "handler.so"]
            subprocess.run(compiler, input=HANDLER, text=True, check=True)
        job = launch(f"{what}-{number.name}", 3, script=SCRIPT, env={"FR_VERDICT": "1"})
        pids = [scratch / f"pid.{rank}" for rank in range(3)]
        wait_until("a start", lambda: all(p.exists() and p.read_text() for p in pids))
        time.sleep(0.3)  # some steps
        for rank in ranks:
            os.kill(int(pids[rank].read_text()), number)
        return job

    return start


def said(trace):
    return [text for b in trace.verdict["blamed"] for text in b["evidence"]]


@pytest.mark.parametrize("way", WAYS)
def test_all_go_on(signalled, scratch, way):
    job = signalled(f"{way}-go_on", [0, 1, 2]).await_evidence()
    trace = job.trace()
    trace.expect("ok", [])
    assert trace.verdict["summary"].startswith("nothing is stuck")
    (scratch / "end").touch()
    assert set(job.await_exit().values()) == {0}
    assert "EXITED" not in job.log() and "ended by" not in job.log()


@pytest.mark.parametrize("way", WAYS)
def test_all_save_and_end(signalled, way):
    job = signalled(f"{way}-save", [0, 1, 2])
    assert set(job.await_exit().values()) == {0}
    trace = job.trace()
    trace.expect("ok", [])
    assert trace.verdict["confidence"] == "certain"
    assert re.fullmatch(
        r"ranks 0-2 were told to end \(SIGTERM\), and ended orderly after [\d.]+ m?s",
        trace.verdict["summary"],
    )
    assert "EXITED" not in job.log() and "ended by" not in job.log()


@pytest.mark.parametrize("way", WAYS)
def test_one_leaves_its_loop(signalled, scratch, way):
    job = signalled(f"{way}-leave", [1])
    wait_until("rank 1 has left", (scratch / "left.1").exists)
    trace = wait_until("a verdict", lambda: none_ok(job.trace()))
    assert trace.verdict["kind"] in ("missing", "exited"), trace
    assert trace.verdict["ranks"] == [1]
    sent = rf"(.*; )?got SIGTERM from process {os.getpid()}( .*)?, which the program handles"
    assert any(re.match(sent, text) for text in said(trace)), said(trace)


def test_interrupts_that_are_caught(signalled, scratch):
    job = signalled("keyboard-go_on", [0, 1, 2], signal.SIGINT).await_evidence()
    (scratch / "end").touch()
    assert set(job.await_exit().values()) == {0}
    trace = job.trace()
    trace.expect("ok", [])
    assert "SIGINT" in trace.verdict["summary"]


def test_a_second_signal_that_ends_it(signalled, scratch):
    """The first signal is handled; the crash after it is what ended the rank."""
    job = signalled("python_handler-go_on", [0, 1, 2]).await_evidence()
    os.kill(int((scratch / "pid.1").read_text()), signal.SIGABRT)
    wait_until("its end", lambda: job.processes[1].poll() is not None)
    trace = wait_until("a verdict", lambda: none_ok(job.trace()))
    assert trace.verdict["kind"] == "exited", trace
    assert trace.verdict["ranks"] == [1]
    assert "SIGABRT" in trace.verdict["summary"]


def none_ok(trace):
    return trace if trace.report and trace.verdict["kind"] not in ("ok", "undecided") else None
