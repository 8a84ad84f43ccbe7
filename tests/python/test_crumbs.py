"""fr.print and fr.trace_calls, on real processes."""

import socket


def test_a_killed_process_leaves_the_function_it_entered_last(launch):
    (ran,) = launch(
        """
        import os, signal, fr
        from fr import _fr
        _fr.start()
        def quiet():
            pass
        def last_one():
            os.kill(os.getpid(), signal.SIGKILL)
        def outer():
            quiet()
            last_one()
        with fr.trace_calls(only="script.py"):
            outer()
        """,
        check=False,
    )
    (ring,) = ran.dir.rglob("*.ring")
    text = ring.read_bytes()
    assert b"-> last_one" in text and b"<- quiet" in text and b"<- last_one" not in text


def test_trace_calls_only_and_limit(launch):
    (ran,) = launch(
        """
        import fr, json, sys
        from fr import _fr
        _fr.start()
        seen = []
        _fr_note, _fr.note = _fr.note, seen.append
        def one():
            return json.dumps([1])
        before = sys.getprofile()
        with fr.trace_calls(only=lambda code: code.co_name == "one", limit=2):
            for _ in range(5):
                one()
        assert sys.getprofile() is before
        first = list(seen)
        del seen[:]
        with fr.trace_calls(only="no such file"):
            one()
        result([first, seen])
        """
    )
    first, other = ran.result
    assert [line.split()[:2] for line in first] == [["->", "one"], ["<-", "one"]] * 2
    assert other == []


def test_trace_calls_sees_generators_exceptions_and_no_more_after_its_end(launch):
    (ran,) = launch(
        """
        import fr, threading
        from fr import _fr
        _fr.start()
        seen, kept = [], []
        _fr.note = lambda text: seen.append(text.split()[:2])
        def generate():
            try:
                yield 1
                yield 2
            except KeyError:
                yield 3
        async def wait():
            raise ValueError
        def use():
            g = generate()
            kept.append(g)  # its end would be one more call
            next(g)
            next(g)
            g.throw(KeyError)
            try:
                wait().send(None)
            except ValueError:
                pass
        def other():
            started.set()
            go_on.wait()
            use()
        started, go_on = threading.Event(), threading.Event()
        with fr.trace_calls(only="script.py"):
            thread = threading.Thread(target=other)
            thread.start()
            started.wait()
            first = len(seen)
            use()
        inside = seen[first:]
        del seen[:]
        go_on.set()
        thread.join()
        result([inside, seen])
        """
    )
    inside, after = ran.result
    steps = ["-> generate", "<- generate"] * 3 + ["-> wait", "<- wait"]
    assert [" ".join(step) for step in inside] == ["-> use", *steps, "<- use"]
    assert after == []


def test_print_says_whose_line_it_is_in_one_write(launch):
    ran = launch(
        """
        import fr
        for i in range(200):
            fr.print("line", i, "x" * 100)
        fr.print("two\\nlines", end="")
        """,
        n=2,
        env={"PYTHONUNBUFFERED": ""},
    )
    for rank, r in enumerate(ran):
        prefix = f"[{socket.gethostname()}:{rank}] "
        lines = r.out.splitlines()
        assert lines[0] == f"{prefix}line 0 {'x' * 100}"
        assert lines[-2:] == [f"{prefix}two", f"{prefix}lines"]
        assert len(lines) == 202 and all(line.startswith(prefix) for line in lines)
