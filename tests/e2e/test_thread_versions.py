"""What a dump says of threads, frames and variables, beside what the process itself says of them,
on every CPython of this machine."""

import json
import re
import signal
from pathlib import Path

import interpreters
import msgpack
import one_process
import pytest
import test_last_words
import test_threads
import zstandard
from conftest import wait_until

interpreter = interpreters.interpreter
native_lib = one_process.native_lib
start = one_process.start

test_every_kind = test_threads.test_every_kind_of_thread_as_py_spy_sees_it
test_gil_held_for_ever_by_a_c_call = test_threads.test_gil_held_for_ever_by_a_c_call
test_recursion_shows_both_ends = test_threads.test_recursion_shows_both_ends
test_variables_of_plain_types_only = test_threads.test_variables_of_plain_types_only


@pytest.mark.parametrize("hang", ["import", "locks"])
def test_hints(start, hang):
    test_threads.test_hints_of_real_hangs(start, hang)


def test_crash(start):
    test_last_words.test_crash_leaves_its_place_and_the_process_dies_of_it(
        start, "lib.crash()", signal.SIGSEGV, "address 0x8: nothing is mapped there", False
    )


class Dump:
    """The newest dump of a process: threads by native id, Python frames innermost first."""

    def __init__(self, process):
        data = process.dump().dumps()[-1].read_bytes()
        unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        self.dump = msgpack.unpackb(unpacked, strict_map_key=False)
        self.frames = self.dump["thread_facts"]["frames"]
        self.threads = {t["tid"]: t for t in self.dump["threads"]}

    def python(self, tid):
        """[(file, line, function)...]"""
        frames = [self.frames[i] for i in self.threads[tid]["stack"]]
        return [(f[2], f[3], f[1]) for f in frames if f[0] == "python"]

    def shape(self, tid):
        """P for each Python frame and for runs of native ones n, innermost first."""
        kinds = "".join(
            "P" if self.frames[i][0] == "python" else "n" for i in self.threads[tid]["stack"]
        )
        return re.sub("n+", "n", kinds)

    def variables(self, tid):
        """{name: value} of each frame that has some, innermost first."""
        return [dict(values) for _, values in self.threads[tid]["variables"]]


KINDS = """
import asyncio, functools, json
arrived = []
def stay():
    arrived.append(1); lib.hold()
def recursion(n):
    return recursion(n - 1) if n else stay()
def generator():
    yield 1
    yield from inner_generator()
def inner_generator():
    yield stay()
async def asynchronous():
    async for _ in async_generator():
        pass
async def async_generator():
    await asyncio.sleep(0)
    yield stay()
class Kind:
    def __init__(self, n):
        self.n = n
    def __lt__(self, other):
        stay()
    def __getattr__(self, name):
        return super().__repr__() if name == "x" else stay()
    @property
    def prop(self):
        def closure():
            return self.n, stay()
        return closure()
    @functools.lru_cache
    def cached(self):
        return stay()
    def ünïcode_日本(self):
        stay()
def with_and_finally():
    try:
        raise ValueError
    except ValueError:
        try:
            pass
        finally:
            stay()
def over_lines():
    return max(
        1,
        *[
            x
            for x in (2, 3)
            if x
        ],
        key=lambda x: (
            x,
            stay(),
        ),
    )
long = "def long_function():\\n x = 0\\n" + " x += 1; y = [x,\\n\\n  x]\\n" * 2000
long += "\\n" * 300 + " stay()\\n"
def class_body():
    class Body:
        stay()
def text_run_by_exec():
    exec(compile("\\n" * 300 + "stay()", "<made up>", "exec"), globals())
def long_one():
    scope = {"stay": stay}
    exec(compile(long, "long.py", "exec"), scope)
    scope["long_function"]()
KINDS = [
    lambda: recursion(40), lambda: list(generator()), lambda: asyncio.run(asynchronous()),
    lambda: sorted([Kind(1), Kind(2)]), lambda: Kind(1).y, lambda: Kind(1).prop,
    lambda: Kind(1).cached(), lambda: Kind(1).ünïcode_日本(), with_and_finally, over_lines,
    class_body, text_run_by_exec, long_one, lambda: list(map(lambda x: stay(), [1])),
    lambda: [stay() for _ in range(2)], lambda: {stay(): 1 for _ in range(2)},
    lambda: functools.partial(functools.reduce, lambda a, b: stay())([1, 2]),
]
for kind in KINDS:
    spawn(kind)
def report():
    while len(arrived) <= len(KINDS):
        time.sleep(0.005)
    tids = {t.ident: t.native_id for t in threading.enumerate()}
    said = {}
    for ident, f in sys._current_frames().items():
        frames = []
        while f is not None:
            c = f.f_code
            frames.append([c.co_filename, f.f_lineno, getattr(c, "co_qualname", c.co_name)])
            f = f.f_back
        if ident != threading.get_ident():
            said[tids[ident]] = frames
    with open("said.json", "w") as out:
        json.dump(said, out)
    ready()
    lib.hold()
spawn(report)
recursion(3)
"""


def test_frames_are_those_that_python_says(start):
    p = start(KINDS).ready()
    said = {int(k): v for k, v in json.loads((p.dir / "said.json").read_text()).items()}
    dump = Dump(p)
    assert len(said) == 18
    for tid, frames in said.items():
        assert dump.threads[tid]["answer"] == "answered"
        assert [list(f) for f in dump.python(tid)] == frames
    # The frames of one evaluation stand together, where its native frames were: from 3.11 on
    # functions that call each other directly are one.
    apart = Path(f"/proc/{p.pid}/exe").resolve().name == "python3.10"
    (deep,) = [t for t, f in said.items() if len([x for x in f if x[2] == "recursion"]) == 41]
    (sort,) = [t for t, f in said.items() if f[1][2].split(".")[-1] == "__lt__"]
    assert dump.shape(deep).startswith("nPn" if apart else "n" + "P" * 43), dump.shape(deep)
    assert dump.shape(sort).startswith("nPnPnPn" if apart else "nPPnP"), dump.shape(sort)


def test_frames_while_the_gil_is_held_for_ever(start):
    p = start(
        """
import faulthandler, json
def waits(n):
    while n:
        time.sleep(0)
def holds():
    faulthandler.dump_traceback_later(0.2, file=said)
    ready()
    holding.hold()
for _ in range(3):
    spawn(lambda: waits(1))
while threading.active_count() < 4:
    time.sleep(0.01)
with open("tids.json", "w") as out:
    json.dump({t.ident: t.native_id for t in threading.enumerate()}, out)
said = open("said", "w")
holds()
"""
    ).ready()
    p.await_calls("pause", *["futex"] * 3)  # for the GIL
    said = p.dir / "said"
    # It writes without the GIL; the thread that holds it, which is the first, comes last.
    wait_until("faulthandler", lambda: " in <module>" in said.read_text())
    tids = {int(k): v for k, v in json.loads((p.dir / "tids.json").read_text()).items()}
    dump = Dump(p)
    seen = 0
    for part in re.split(r"(?=^Thread 0x)", said.read_text(), flags=re.M)[1:]:
        ident = int(re.match(r"Thread (0x[0-9a-f]+)", part)[1], 16)
        frames = re.findall(r'File "(.*)", line (\d+) in (\S+)', part)
        ours = dump.python(tids[ident])
        assert [(f, str(n), name.split(".")[-1]) for f, n, name in ours] == frames
        assert dump.threads[tids[ident]]["gil"] == ("holds" if tids[ident] == p.pid else "waits")
        seen += 1
    assert seen == 4


VALUES = """
import json
text = {str: lambda v: "'" + v + "'"}
plain = (int, float, str, bytes, bool, tuple, list, dict, type(None))
def told(v, inside=False):
    if type(v) in (tuple, list) and not inside and len(v) <= 8 and all(type(x) in plain for x in v):
        of = ", ".join(told(x, True) for x in v)
        return f"[{of}]" if type(v) is list else f"({of},)" if len(v) == 1 else f"({of})"
    if type(v) in (tuple, list, dict):
        return f"{type(v).__name__} of {len(v)}"
    if type(v) is int and abs(v) >> 60:
        return f"int of {(abs(v).bit_length() + 29) // 30 * 30} bits"
    if type(v) is float:
        return "%.12g" % v
    return text.get(type(v), str)(v)
def expect(what):
    with open("said.json", "a") as out:
        out.write(json.dumps({k: told(v) for k, v in what.items() if type(v) in plain}) + "\\n")
"""

NUMBERS_AND_TEXTS = """
def numbers():
    zero, one, minus, small, digit = 0, 1, -1, -5, 1 << 29
    two, big, most = -(1 << 30), 1 << 45, 1 << 60
    huge, truth, lie, nothing, half, nan = 1 << 200, True, False, None, -0.5, float("nan")
    expect(locals())
    ready(); lib.hold()
def texts(empty, latin="ä", wide="日本", astral="\\U0001f600x", *many, **named):
    long, raw = "x" * 100, b"123"
    a, b, c = [1, 2], (), {1: 2}
    made = "".join(["ma", "de"])
    expect(locals())
    numbers()
def cells(captured, unbound=3):
    other = 7
    def inner(argument):
        nonlocal other
        other += captured
        expect({"argument": argument, "captured": captured, "other": other})
        texts("", 5, 6, 7, 8, key=1)
    later = 5
    del unbound
    expect({"captured": captured, "other": other + captured, "later": later})
    inner(2)
cells(4)
"""

SELVES = """
class Inline:
    def __init__(self):
        self.one, self.two, self.text = 1, 2.5, "t"
class Materialised(Inline):
    def __init__(self):
        super().__init__()
        self.__dict__["three"] = 3
class Slotted:
    __slots__ = ("__dict__",)
    def __init__(self):
        self.one, self.two = "1", None
class Number(int):
    def __init__(self, *_):
        self.one = [1]
def add(kind):
    def go(self, *rest):
        expect({**vars_of(self), "rest": rest})
        return rest[0].go(*rest[1:]) if rest else [ready(), lib.hold()]
    kind.go = go
def vars_of(o):
    # looking at __dict__ would change how attributes are kept
    names = ("one", "two", "text", "three")
    return {"self." + n: getattr(o, n) for n in names if hasattr(o, n)}
for kind in (Inline, Slotted, Number):
    add(kind)
Inline().go(Materialised(), Slotted(), Number(5))
"""


@pytest.mark.parametrize("script", [NUMBERS_AND_TEXTS, SELVES], ids=["locals", "selves"])
def test_variables_are_those_that_python_says(start, script):
    p = start(VALUES + script).ready()
    said = [json.loads(line) for line in (p.dir / "said.json").read_text().splitlines()]
    assert Dump(p).variables(p.pid) == said[::-1]
