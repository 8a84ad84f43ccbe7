"""Call stacks: what Python says of itself is what the ring holds."""

from __future__ import annotations


def run(launch, body, **kwargs):
    (ran,) = launch(
        """
        import sys, traceback
        import fr
        from fr import _fr
        g = fr.group("g", [0])
        def expect():
            # (file, line, qualified name) of every frame below, innermost first
            frames, f = [], sys._getframe(2)
            while f is not None and len(frames) < 30:
                c = f.f_code
                frames.append([c.co_filename, f.f_lineno, getattr(c, "co_qualname", c.co_name)])
                f = f.f_back
            return frames
        expected = []
        def op():
            fr.end(fr.begin(g, "op")); expected.append(expect())
        """
        + body
        + """
        seen = [r["stack"][1:31] for r in _fr.records() if r["op"] == "op"]
        result([seen, expected])
        """,
        n=0,
        **kwargs,
    )
    return ran.result


def test_plain_recursion_generators_classes(launch):
    seen, expected = run(
        launch,
        """
        def rec(n):
            op() if n == 0 else rec(n - 1)
        def gen():
            yield op()
            yield from inner()
        def inner():
            yield op()
        class K:
            def method(self):
                return [op() for _ in range(2)]
            @staticmethod
            def s(): op()
            def ünïcode(self): op()
        rec(0); rec(5)
        list(gen())
        K().method(); K.s(); K().ünïcode()
        sorted([1, 2], key=lambda x: op() or x)  # called from C
        """,
    )
    assert len(seen) == 10
    assert seen == expected


def test_deep_stacks_are_cut_at_32(launch):
    (ran,) = launch(
        """
        import fr
        from fr import _fr
        g = fr.group("g", [0])
        def rec(n):
            return fr.begin(g, "op") if n == 0 else rec(n - 1)
        fr.end(rec(100))
        result([r["stack"] for r in _fr.records() if r["op"] == "op"])
        """,
        n=0,
    )
    (stack,) = ran.result
    assert len(stack) == 32
    assert {f[2] for f in stack} == {"rec"}


def test_asyncio_and_threads(launch):
    seen, expected = run(
        launch,
        """
        import asyncio, threading
        async def deep():
            await asyncio.sleep(0)
            op()
        async def main():
            await asyncio.gather(deep(), deep())
        asyncio.run(main())
        t = threading.Thread(target=op); t.start(); t.join()
        """,
    )
    assert len(seen) == 3
    assert seen == expected


def test_text_that_is_run_again_and_again(launch):
    """Code objects that die and lie at the same address again must not be taken for each other."""
    seen, expected = run(
        launch,
        """
        import gc
        for i in range(300):
            code = compile("\\n" * (i % 7) + "op()", "<cell>" if i % 3 else "<input>", "exec")
            exec(code)
            del code
            if i % 50 == 0:
                gc.collect()
        for i in range(100):
            ns = {"op": op}
            exec("\\n" * (i % 11) + f"def f{i % 4}():\\n  op()\\nf{i % 4}()", ns)
        """,
    )
    assert len(seen) == 400
    assert seen == expected


def test_odd_file_names(launch):
    seen, expected = run(
        launch,
        """
        for name in ("é.py", "日本.py", "\\U0001f600.py", "a" * 500):
            exec(compile("op()", name, "exec"))
        """,
    )
    assert seen == expected


def test_tracing_does_not_confuse_it(launch):
    seen, expected = run(
        launch,
        """
        def traced():
            op()
        traced()
        sys.settrace(lambda *a: None)
        for _ in range(3):
            traced()
        sys.settrace(None)
        traced()
        """,
    )
    assert len(seen) == 5
    assert seen == expected


def test_stacks_off(launch):
    seen, _ = run(launch, "\n        op()\n", env={"FR_STACKS": "off"})
    assert seen == [[]]


def test_same_stack_same_id(launch):
    (ran,) = launch(
        """
        import fr
        from fr import _fr
        fr.group("g", [0])
        def here():
            return _fr.capture_stack()
        ids = [here() for _ in range(100)]
        other = here()
        result([len(set(ids)), ids[0] != other, ids[0] > 0])
        """,
        n=0,
    )
    assert ran.result == [1, True, True]


def test_the_users_line_below_more_library_frames_than_a_stack_keeps(launch):
    (ran,) = launch(
        """
        import os, sys
        import fr
        from fr import _fr
        os.mkdir("site-packages")
        with open("site-packages/deep.py", "w") as f:
            f.write("import fr\\ndef call(n, g):\\n"
                    "    return call(n - 1, g) if n else fr.end(fr.begin(g, 'deep'))\\n")
        sys.path.insert(0, "site-packages")
        import deep
        def first():
            deep.call(40, fr.group("g", [0])); return sys._getframe().f_lineno
        def second():
            deep.call(40, fr.group("g", [0])); return sys._getframe().f_lineno
        lines = [first(), second()]
        stacks = [r["stack"] for r in _fr.records() if r["op"] == "deep"]
        result([[[len(s), *s[-1][1:]] for s in stacks], lines])
        """,
        n=0,
    )
    stacks, lines = ran.result
    assert stacks == [[32, lines[0], "first"], [32, lines[1], "second"]]
