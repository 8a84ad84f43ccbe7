"""The calls of the package in a process without torch: records by hand, notes, dumps, status."""

from __future__ import annotations

import json
import subprocess
import sys


def test_the_module_imports_without_torch_and_makes_nothing(launch):
    (ran,) = launch(
        """
        import os, sys
        before = set(sys.modules)
        import fr
        assert "torch" not in sys.modules
        here = sorted(os.listdir(os.environ["FR_SHM_DIR"]))
        result([here, fr.status(), fr.snapshot(), fr.dump()])
        """,
        n=0,
    )
    files, status, snapshot, dumped = ran.result
    assert files == ["script.py"]  # no ring, no directory
    assert status["on"] is False
    assert status["python"]["torch_hooked"] is False
    assert snapshot["entries"] == []
    assert dumped is None
    assert ran.err == ""


def test_switched_off(launch):
    (ran,) = launch(
        """
        import os, sys
        hook = sys.excepthook
        finders = list(sys.meta_path)
        import fr
        assert sys.excepthook is hook and sys.meta_path == finders
        handle = fr.group("g", [0, 1])
        ticket = fr.begin(handle, "op")
        fr.end(ticket)
        fr.note("x"); fr.step(1)
        with fr.span("s"), fr.record(handle, "op"):
            pass
        result([handle, ticket.recorded, fr.status()["on"], sorted(os.listdir("."))])
        """,
        n=0,
        env={"FR_ENABLE": "0"},
    )
    assert ran.result == [0, False, False, ["script.py"]]
    assert ran.err == ""


def test_manual_records(launch):
    (ran,) = launch(
        """
        import fr
        from fr import _fr
        world = fr.group("world", [0, 1, 2, 3], desc="mine", backend="mylib")
        def call():
            return fr.begin(world, "exchange", sizes=[4, 3], dtype="float32", peer=2)
        a = call()
        b = fr.begin(world, "exchange", _fr.COLLECTIVE, _fr.ASYNC, -1, 7, 8, 7, 7, 1, 500)
        fr.end(a)
        fr.end(a)  # nothing happens
        fr.end(b, _fr.FAILED, "went wrong")
        with fr.record(world, "scatter", sizes=[[2], [3, 3]], out_sizes=[[5]], dtype="Half"):
            pass
        try:
            with fr.record(world, "gather"):
                raise ValueError("in here")
        except ValueError:
            pass
        s1 = fr.begin(world, "send", _fr.SEND, 0, 1)
        s2 = fr.begin(world, "send", _fr.SEND, 0, 3)
        s3 = fr.begin(world, "send", _fr.SEND, 0, 1)
        for t in (s1, s2, s3):
            fr.end(t)
        result([_fr.records(), [a.seq, b.seq, s1.seq, s2.seq, s3.seq], repr(a)])
        """,
        n=0,
    )
    records, seqs, text = ran.result
    records = [r for r in records if r["kind"] != "lifecycle"]
    assert seqs == [1, 2, 1, 1, 2]
    assert "seq=1" in text
    first, second, third, fourth = records[:4]
    assert first["op"] == "exchange" and first["state"] == "completed"
    assert (first["in_sizes"], first["in_dtype"], first["peer"]) == ([[4, 3]], "Float", 2)
    assert (first["in_numel"], first["out_numel"]) == (12, 12)
    assert first["stack"][0][2] == "call"
    assert first["group_name"] == "world"
    assert second["state"] == "failed" and second["error"] == "went wrong"
    assert (second["in_numel"], second["out_numel"], second["timeout_ms"]) == (7, 8, 500)
    assert (second["flags"], second["reduce_op"]) == (1, "SUM")
    assert third["in_sizes"] == [[2], [3, 3]] and third["out_sizes"] == [[5]]
    assert (third["in_numel"], third["out_numel"], third["in_dtype"]) == (11, 5, "Half")
    assert fourth["seq"] == 4
    assert fourth["error"] == "ValueError: in here"


def test_wrong_arguments_raise(launch):
    (ran,) = launch(
        """
        import fr
        world = fr.group("world", 2)
        errors = []
        for call in (
            lambda: fr.begin(world),
            lambda: fr.begin("world", "op"),
            lambda: fr.begin(world, "op", sizes=5),
            lambda: fr.begin(world, "op", sizes=["a"]),
            lambda: fr.begin(world, "op", size=[1]),
            lambda: fr.end(None),
            lambda: fr.end(5),
            lambda: fr.note(5),
            lambda: type(fr.begin(world, "op"))(),
        ):
            try:
                call()
                errors.append("")
            except TypeError as error:
                errors.append(str(error))
        result(errors)
        """,
        n=0,
    )
    assert all(ran.result), ran.result


def test_breadcrumbs_and_dump(launch):
    (ran,) = launch(
        """
        import threading
        import fr
        g = fr.group("g", [0])
        fr.note("loading")
        fr.step(17)
        got = []
        ready = threading.Event()
        fr.register_writer(lambda data, info: (got.append((data, info)), ready.set()))
        @fr.span("inner")
        def work():
            return fr.dump("because")
        with fr.span("epoch"):
            path = work()
        ready.wait(10)
        data, info = got[0]
        with open(path, "rb") as file:
            assert file.read() == data
        result([path, info, fr.status()["last_dump"]])
        """,
        n=0,
    )
    path, info, last = ran.result
    assert path.endswith(".fr")
    assert info["path"] == path == last
    assert info["reason"] == "because"
    assert info["incident"] >= 1


def test_a_failing_writer_is_reported(launch):
    (ran,) = launch(
        """
        import threading
        import fr
        fr.group("g", [0])
        ready = threading.Event()
        def bad(data, info):
            ready.set()
            raise OSError("bucket gone")
        fr.register_writer(bad)
        fr.dump()
        ready.wait(10)
        fr.register_writer(None)  # waits for it
        """,
        n=0,
    )
    assert "bucket gone" in ran.err


def test_an_unhandled_exception_is_kept(launch):
    (ran,) = launch(
        """
        import fr
        fr.group("g", [0])
        def train():
            raise RuntimeError("loss is NaN")
        train()
        """,
        n=0,
        check=False,
    )
    assert ran.code == 1
    assert "RuntimeError: loss is NaN" in ran.err  # the usual traceback
    (dump,) = (ran.dir / "dumps").rglob("*.fr")  # the exit adds nothing to it
    assert dump.stat().st_size > 0


def test_system_exit_is_no_exception(launch):
    (ran,) = launch(
        """
        import fr, sys
        fr.group("g", [0])
        sys.exit(0)
        """,
        n=0,
    )
    assert not list((ran.dir / "dumps").rglob("*.fr"))


def test_excepthook_is_chained(launch):
    (ran,) = launch(
        """
        import sys, threading
        sys.excepthook = lambda t, e, tb: print("mine", e)
        threading.excepthook = lambda args: print("thread", args.exc_value)
        import fr
        def boom():
            raise ValueError("a")
        t = threading.Thread(target=boom); t.start(); t.join()
        raise ValueError("b")
        """,
        n=0,
        check=False,
    )
    assert ran.out.split("\n")[:2] == ["thread a", "mine b"]


def test_python_m_fr(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, os, json\n"
        "assert 'fr' in sys.modules\n"
        "print(json.dumps([__name__, sys.argv, sys.path[0]]))\n"
        "sys.exit(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "fr", str(script), "--lr", "1"], capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    name, argv, path0 = json.loads(done.stdout)
    assert name == "__main__"
    assert argv == [str(script), "--lr", "1"]
    assert path0 == str(tmp_path)
    assert subprocess.run([sys.executable, "-m", "fr"], capture_output=True).returncode == 2


def test_options_set_in_the_script_count(launch):
    (ran,) = launch(
        """
        import os
        import fr
        os.environ["TORCH_FR_BUFFER_SIZE"] = "1024"
        os.environ["FR_WARN_S"] = "3"
        fr.group("g", [0])
        result(fr.status()["options"])
        """,
        n=0,
    )
    assert ran.result["FR_BUFFER_SIZE"]["value"] == "1024"
    assert ran.result["FR_WARN_S"]["value"] == "3"


def test_a_forked_child_is_silent_until_it_starts_its_own(launch):
    (ran,) = launch(
        """
        import os
        import fr
        from fr import _fr
        g = fr.group("g", [0])
        ticket = fr.begin(g, "in the parent")
        r, w = os.pipe()
        if os.fork() == 0:
            fr.end(ticket)
            t = fr.begin(g, "in the child")
            silent = not t.recorded
            own = fr.group("own", [0])
            fr.end(ticket)  # of another recorder: ignored
            def call():
                return fr.begin(own, "child op")
            fr.end(call())
            records = [[x["op"], x["stack"][0][2], x["state"]] for x in _fr.records()
                       if x["kind"] == "collective"]
            os.write(w, repr([silent, _fr.generation(), records]).encode())
            os._exit(0)
        os.wait()
        import ast
        child = ast.literal_eval(os.read(r, 10000).decode())
        mine = [[x["op"], x["state"]] for x in _fr.records() if x["kind"] == "collective"]
        fr.end(ticket)
        result([child, mine])
        """,
        n=0,
    )
    (silent, generation, records), mine = ran.result
    assert silent and generation == 2
    assert records == [["child op", "call", "completed"]]
    assert mine == [["in the parent", "enqueued"]]


def test_the_dump_of_an_exception_is_delivered(launch):
    (ran,) = launch(
        """
        import os
        import fr
        def upload(data, info):
            result([len(data), info["path"], fr.status()["options"]["FR_WARN_S"]["value"]])
        fr.register_writer(upload)
        assert not fr.status()["on"]  # it does not start the recorder
        os.environ["FR_WARN_S"] = "3"
        fr.group("g", [0])
        raise RuntimeError("end")
        """,
        n=0,
        check=False,
    )
    assert ran.code == 1
    size, path, option = ran.result
    assert size > 100
    assert path.endswith(".fr")
    assert option == "3"


def test_native_stacks_come_before_the_python_frames(launch):
    (ran,) = launch(
        """
        import fr
        from fr import _fr
        world = fr.group("world", [0, 1])
        def call():
            return fr.begin(world, "op")
        for _ in range(2):
            call()
        result([r["stack"] for r in _fr.records() if r["op"] == "op"])
        """,
        n=0,
        env={"FR_STACKS": "native"},
    )
    first, second = ran.result
    assert first == second  # the same place is interned once
    files = [frame[0] for frame in first]
    python = files.index(next(f for f in files if f.endswith("script.py")))
    assert python > 0 and all(".so" in f for f in files[:python])
    assert first[python][2].endswith("call")
