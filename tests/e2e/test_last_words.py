"""The evidence of a process that crashes, raises, exits or gets a signal to end."""

import json
import os
import signal

import one_process
import pytest
from conftest import wait_until
from one_process import PRELUDE

interpreter = one_process.interpreter
native_lib = one_process.native_lib
start = one_process.start


@pytest.mark.parametrize(
    ("code", "died", "text"),
    [
        ("lib.crash()", signal.SIGSEGV, "address 0x8: nothing is mapped there"),
        ("os.abort()", signal.SIGABRT, "raised by the process itself"),
        ("os.kill(os.getpid(), signal.SIGFPE)", signal.SIGFPE, "raised by the process itself"),
    ],
)
@pytest.mark.parametrize("faulthandler", [False, True])
def test_crash_leaves_its_place_and_the_process_dies_of_it(start, code, died, text, faulthandler):
    python = ("-X", "faulthandler") if faulthandler else ()
    p = start(f"import signal\ndef guilty():\n    {code}\nguilty()\n", python=python)
    assert p.process.wait(timeout=45) == -died, p.log.read_text()
    (found,) = [c for c in p.stacks() if c["role"] == "main"]
    assert "guilty" in str(found["stack"])
    if died == signal.SIGSEGV:  # where it crashed, without the handler's own frames
        assert found["stack"][-1] == "write_to_nowhere (libguilty.so)", found
    verdict = p.report["verdict"]
    assert verdict["kind"] == "exited", verdict
    assert verdict["summary"] == f"rank 0 was ended by {died.name}, {text}", verdict
    assert verdict["blamed"][0]["evidence"][0] == f"got {died.name}, {text}", verdict
    log = p.log.read_text()
    assert text in log, log
    if died == signal.SIGSEGV:
        assert "write_to_nowhere (libguilty.so" in log
    assert ("Fatal Python error" in log) == faulthandler
    # Its dump is safe. Where others handle the signal too, nobody knows that it is the end.
    assert bool(list((p.dir / "shm").rglob("*.ring"))) == faulthandler


@pytest.mark.parametrize("thread", ["Python's", "that records", "main"])
def test_an_overflow_of_any_threads_stack_leaves_a_crash_record(start, thread):
    run = {
        "Python's": "threading.stack_size(1 << 18)\nspawn(lib.overflow)",
        "that records": "lib.start_thread(ctypes.cast(fr_note, ctypes.c_void_p))",
        "main": "lib.overflow()",
    }[thread]
    p = start(
        "import fr\nfr_note = ctypes.CDLL(os.path.join(os.path.dirname(fr.__file__), 'libfr.so'))"
        f".fr_note\n{run}\ntime.sleep(60)\n"
    )
    assert p.process.wait(timeout=45) == -signal.SIGSEGV, p.log.read_text()
    assert "crash: SIGSEGV" in p.log.read_text()
    assert "the thread's stack is full" in p.log.read_text()
    assert "overflow (libguilty.so)" in str(p.read()), p.report


def test_exceptions_are_told_with_their_first_cause(start):
    p = start(
        """
def inner():
    {}["a"]
def outer():
    try:
        inner()
    except KeyError as error:
        raise RuntimeError("no batch") from error
t = threading.Thread(target=inner, name="prefetch")
t.start()
t.join()
outer()
"""
    )
    assert p.process.wait(timeout=45) == 1
    p.stacks()
    verdict = p.report["verdict"]
    assert verdict["kind"] == "exited"
    assert verdict["summary"] == "rank 0 raised RuntimeError: no batch", verdict
    line = len(PRELUDE.splitlines())
    said = "\n".join(verdict["blamed"][0]["evidence"])
    assert said.startswith("raised RuntimeError: no batch\n"), said  # not where the hook waits
    assert f"at target.py:{line + 8} outer < target.py:{line + 12} <module>" in said
    assert "_note_exception" not in said
    assert f"first cause: KeyError: 'a', at target.py:{line + 3} in inner" in said
    assert f"its thread prefetch died of KeyError: 'a', at target.py:{line + 3} in inner" in said


def test_a_crash_of_another_thread_is_told_as_its_own(start):
    p = start(
        """
def decode():
    lib.crash()
spawn(decode)
time.sleep(3600)
"""
    )
    assert p.process.wait(timeout=45) == -signal.SIGSEGV, p.log.read_text()
    p.stacks()
    (blamed,) = p.report["verdict"]["blamed"]
    assert ", in thread " in blamed["evidence"][0], blamed
    assert blamed["evidence"][1].startswith("stack: write_to_nowhere (libguilty.so) < "), blamed
    assert blamed["site"]["function"] == "decode", blamed


@pytest.mark.parametrize("died", [signal.SIGHUP, signal.SIGQUIT])
def test_hang_up_and_quit_leave_their_evidence(start, died):
    """torchrun hands them on to its ranks."""
    p = start("ready()\nlib.hold()\n")
    p.ready(asleep=("34",) if os.uname().machine == "x86_64" else None)
    p.process.send_signal(died)
    assert p.process.wait(timeout=45) == -died, p.log.read_text()
    assert "hold (libguilty.so)" in p.main()["stack"]
    summary = p.report["verdict"]["summary"]
    assert f"ended by {died.name}, sent by process {os.getpid()} (" in summary, summary


def test_a_script_that_uses_hang_up_itself_is_left_alone(start):
    p = start(
        """
import signal
def reload(number, frame):
    open("reloaded", "w").close()
signal.signal(signal.SIGHUP, reload)
_fr.dump()                  # by now fr has seen that handler
ready()
while True:
    time.sleep(0.01)
"""
    ).ready()
    before = p.dumps()
    p.process.send_signal(signal.SIGHUP)
    wait_until("the script's handler", lambda: (p.dir / "reloaded").exists())
    assert p.dumps() == before
    assert p.process.poll() is None


def test_what_was_raised_in_a_loader_worker_is_told_with_its_last_line(start):
    pytest.importorskip("torch")
    p = start(
        """
import torch
class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        raise ValueError("bad sample")
next(iter(torch.utils.data.DataLoader(Dataset(), num_workers=1)))
"""
    )
    assert p.process.wait(timeout=90) == 1, p.log.read_text()
    p.stacks()
    summary = p.report["verdict"]["summary"]
    assert "Caught ValueError in DataLoader worker process 0." in summary, summary
    assert summary.endswith("... ValueError: bad sample"), summary


@pytest.mark.parametrize(
    "how", ["exit(3)", "sys.exit(3)", "raise SystemExit(3)", "sys.exit(3) # caught"]
)
def test_the_place_of_sys_exit_is_kept(start, how):
    p = start(
        f"""
def leave():
    {how}
def issue():
    fr.begin(fr.group("g", [0, 1]), "all_reduce")
issue()
try:
    leave()
except SystemExit:
    if "caught" not in {how!r}: raise
    issue()
ready()
if "caught" in {how!r}: raise SystemExit(3)
"""
    )
    assert p.process.wait(timeout=30) == 3, p.log.read_text()
    line = (p.dir / "target.py").read_text().split("\n").index(f"    {how}") + 1
    told = f"by sys.exit at target.py:{line} leave" in json.dumps(p.read())
    assert told == ("caught" not in how), p.report


def test_no_crash_handlers_when_told(start):
    p = start("lib.crash()\n", env={"FR_CRASHES": "0"})
    assert p.process.wait(timeout=45) == -signal.SIGSEGV
    assert p.dumps() == []
