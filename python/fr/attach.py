"""A hand on a hung rank: answers `frtrace attach`, from a thread of its own.

The thread sleeps in accept() without the GIL, where FR_ATTACH=1; else there is none. A request is a
line of JSON, so is an answer. Only this process's user is answered. Devices are never queried: a
query to a hung device hangs, too.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import json
import os
import reprlib
import socket
import struct
import sys
import threading

from . import _fr, problems

_LIMIT_S = 5
_STOP_S = 3  # that an expression has to end once it is stopped; large results take long to free
_MOST_BYTES = 64 * 1024  # of an answer, and of a request
_MOST = 8  # connections at a time
_WARN = 1  # level of a line on stderr

_lock = threading.Lock()
_listener = None
_path = ""
_looks = False  # FR_ATTACH=1; without it fr.breakpoint() alone lets a debugger in
_busy = 0
_watches_forks = False
_own: set[int] = set()  # our own threads, which are not shown
stopped = None  # what the debugger asks for: the debugger.Stop of a rank that stands in one


class Refused(Exception):
    """A refused request; the text says why."""


# ---------------------------------------------------------------- values as text


def _tensor_type():
    return getattr(sys.modules.get("torch"), "Tensor", None)


class _Printer(reprlib.Repr):
    """Like repr(), but tensors on a device, inside containers too, show only data of the host."""

    def __init__(self):
        super().__init__()
        self.maxlevel = 6
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 200
        self.maxdeque = self.maxarray = 200
        self.maxstring = self.maxother = self.maxlong = 16 * _MOST_BYTES

    def repr1(self, x, level):
        kind = _tensor_type()
        if kind is not None and isinstance(x, kind):
            return _tensor_text(x)
        name = type(x).__name__
        for base, write in (
            (dict, self.repr_dict),
            (list, self.repr_list),
            (tuple, self.repr_tuple),
        ):
            if isinstance(x, base):
                text = write(x, level)
                return text if type(x) is base else f"{name}({text})"
        return super().repr1(x, level)


def _tensor_text(x) -> str:
    plain = type(x).__module__ == "torch" or type(x).__name__ == "Parameter"
    if plain and x.device.type == "cpu":
        with contextlib.suppress(Exception):
            return repr(x)
    text = f"{type(x).__name__}(shape={tuple(x.shape)}, dtype={x.dtype}, device={x.device}"
    with contextlib.suppress(Exception):  # a subclass may have no storage of its own
        text += f", data_ptr={x.data_ptr():#x}"
    return text + ")"


def _no_device():
    """Refuses operations of this thread on devices, and collectives."""
    module = sys.modules.get("torch.utils._python_dispatch")
    mode = getattr(module, "TorchDispatchMode", None)
    if mode is None:
        return contextlib.nullcontext()  # no torch, or only half of it: no tensors either

    def devices(x):
        if isinstance(x, (list, tuple)):
            for item in x:
                yield from devices(item)
        elif isinstance(x, dict):
            yield from devices(list(x.values()))
        elif hasattr(x, "dtype") and hasattr(x, "device"):
            yield str(x.device)

    class NoDevice(mode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            used = {*devices(args), *devices(kwargs)}
            if kwargs.get("device") is not None:
                used.add(str(kwargs["device"]))
            beyond = [d for d in used if not d.startswith("cpu")]
            if beyond:
                raise Refused(f"{func} would run on {beyond[0]}, which may hang")
            if "c10d" in str(func):
                raise Refused(f"{func} would communicate")
            return func(*args, **kwargs)

    return NoDevice()


# ---------------------------------------------------------------- threads and frames


def _thread(wanted) -> tuple[int, str]:
    """Identity and name of a thread: of that name or number, else the main one."""
    threads = {t.ident: t for t in threading.enumerate()}
    if not wanted:
        main = threading.main_thread()
        return main.ident, main.name
    for ident, t in threads.items():
        if str(wanted) in (t.name, str(t.native_id)):
            return ident, t.name
    raise Refused(f"there is no thread {wanted}; `threads` lists them")


def _frames(ident) -> list:
    """Innermost first."""
    frame, found = sys._current_frames().get(ident), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    if not found:
        raise Refused("that thread runs no Python code")
    return found


def _is_users(frame) -> bool:
    file = frame.f_code.co_filename
    return not (file.startswith("<frozen") or _fr.is_library_file(file))


def _choose(frames, number) -> int:
    if number is not None:
        if not 0 <= number < len(frames):
            raise Refused(f"there is no frame {number}, only 0 to {len(frames) - 1}")
        return number
    return next((i for i, f in enumerate(frames) if _is_users(f)), 0)


def _frame_text(frame) -> str:
    name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return f"{name}() at {frame.f_code.co_filename}:{frame.f_lineno}"


def _list_threads(request) -> str:
    lines = []
    for t in threading.enumerate():
        if t.ident in _own or t.ident not in sys._current_frames():
            continue
        frames = _frames(t.ident)
        lines.append(f"{t.native_id} {t.name}: {_frame_text(frames[_choose(frames, None)])}")
    return "\n".join(lines)


def _backtrace(request) -> str:
    ident, name = _thread(request.get("thread"))
    frames = _frames(ident)
    chosen = _choose(frames, request.get("frame"))
    lines = [f"{'->' if i == chosen else '  '} #{i} {_frame_text(f)}" for i, f in enumerate(frames)]
    return "\n".join([f"thread {name}, innermost first:", *lines])


# ---------------------------------------------------------------- evaluation


def _compile(text: str, statements: bool):
    """Code to run, and code whose value is shown; one of them may be missing."""
    try:
        if not statements:
            tree = ast.parse(text.strip(), "<attach>", "eval")
        else:
            tree = ast.parse(text, "<attach>", "exec")
    except SyntaxError as error:
        more = "" if statements else "; one expression is evaluated, statements need --exec"
        raise Refused(f"not understood: {error.msg}{more}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr) and not statements:
            raise Refused("an assignment needs --exec")
        if isinstance(node, ast.Attribute) and node.attr in ("cuda", "synchronize"):
            raise Refused(f".{node.attr} could wait for a device")
    if not statements:
        return None, compile(tree, "<attach>", "eval")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    shown = compile(ast.Expression(last.value), "<attach>", "eval") if last is not None else None
    return compile(tree, "<attach>", "exec"), shown


def _evaluate(request) -> str:
    text = str(request.get("text", ""))
    run, shown = _compile(text, bool(request.get("exec")))
    ident, _ = _thread(request.get("thread"))
    frames = _frames(ident)
    frame = frames[_choose(frames, request.get("frame"))]
    # A copy: names that the expression binds stay out of the program. One dict, so that lambdas and
    # comprehensions see the frame's variables.
    names = {**frame.f_globals, **frame.f_locals}
    del frame, frames
    printed: list[str] = []
    names["print"] = lambda *values, sep=" ", end="\n", **_: printed.append(
        sep.join(map(str, values)) + end
    )
    outcome: dict = {}

    def work():
        _own.add(threading.get_ident())
        try:
            with _no_device():
                if run is not None:
                    exec(run, names)
                value = eval(shown, names) if shown is not None else None
                said = "".join(printed)
                if shown is not None and not (run is not None and value is None):
                    said += _Printer().repr(value)
                outcome["text"] = said
        except BaseException as error:  # SystemExit too: it is the expression's
            outcome["error"] = f"{type(error).__name__}: {error}"
        finally:
            _own.discard(threading.get_ident())

    worker = threading.Thread(target=work, name="fr-attach", daemon=True)
    worker.start()
    worker.join(_LIMIT_S)
    if worker.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(worker.ident), ctypes.py_object(TimeoutError)
        )
        worker.join(_STOP_S)
        if worker.is_alive():
            raise Refused(f"no answer within {_LIMIT_S} s, and it cannot be stopped: it goes on")
        raise Refused(f"no answer within {_LIMIT_S} s: it was stopped")
    if "error" in outcome:
        raise Refused(outcome["error"])
    return outcome["text"]


# ---------------------------------------------------------------- requests

_ANSWERS = {"eval": _evaluate, "threads": _list_threads, "bt": _backtrace}


def _answer(request, caller: int) -> dict:
    what = request.get("do")
    if what not in _ANSWERS:
        return {"error": f"no such request: {what}"}
    if not _looks:
        return {"error": "only --pdb: this process was not started with FR_ATTACH=1"}
    if what == "eval":
        verb = "executes" if request.get("exec") else "evaluates"
        line = f"frtrace attach (process {caller}) {verb}: {str(request.get('text'))[:200]}"
        _fr.note(_fr.without_secrets(line))
        _fr.log(_WARN, _fr.without_secrets(line))
    try:
        text = _ANSWERS[what](request)
    except Refused as why:
        return {"error": str(why)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > _MOST_BYTES:
        text = data[:_MOST_BYTES].decode("utf-8", "ignore") + f"\n... cut, {len(data)} bytes in all"
    return {"text": text}


def _talk(connection) -> None:
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )

    def say(answer):
        connection.sendall(json.dumps(answer).encode() + b"\n")

    if uid != os.geteuid():
        say({"error": f"user {uid} is not this process's user {os.geteuid()}"})
        return
    if _busy > _MOST:
        say({"error": f"{_MOST} others look into this process already"})
        return
    say({"hello": os.getpid()})
    lines = connection.makefile("rb")
    while True:
        line = lines.readline(_MOST_BYTES + 1)
        if not line.endswith(b"\n"):
            return  # gone, or more than a request can be
        try:
            request = json.loads(line)
        except ValueError:
            say({"error": "not a line of JSON"})
            continue
        if request.get("do") == "pdb":
            stop = stopped
            if stop is None or not stop.take():
                say({"error": "this rank waits for no debugger: it is not in fr.breakpoint()"})
                continue
            _fr.log(_WARN, f"frtrace attach (process {pid}) debugs this rank")
            say({"text": ""})
            stop.debug(connection, lines)
            return
        say(_answer(request, pid))


def _handle(connection) -> None:
    global _busy
    _own.add(threading.get_ident())
    with _lock:
        _busy += 1
    try:
        with connection, contextlib.suppress(OSError, ValueError, AttributeError):
            _talk(connection)
    finally:
        with _lock:
            _busy -= 1
        _own.discard(threading.get_ident())


def _accept(listener) -> None:
    _own.add(threading.get_ident())
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_handle, args=(connection,), name="fr-attach", daemon=True).start()


# ---------------------------------------------------------------- start and end


def _remove() -> None:
    with contextlib.suppress(OSError):
        os.unlink(_path)


def _forget() -> None:
    """In a forked child: the socket is the parent's."""
    global _listener, _path, _busy, _lock, stopped
    if _listener is not None:
        _listener.close()
        atexit.unregister(_remove)
    _listener, _path, _busy, stopped = None, "", 0, None
    _lock = threading.Lock()
    _own.clear()


def _listen(directory: str):
    """A socket below the ring's directory: <pid namespace>.<pid>.attach, for its owner only."""
    global _path
    space = os.stat("/proc/self/ns/pid").st_ino
    for name in os.listdir(directory):
        parts = name.split(".")
        if parts[0] == str(space) and parts[2:] == ["attach"] and parts[1].isdigit():
            if not os.path.exists(f"/proc/{parts[1]}"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(directory, name))  # left by a killed process
    _path = os.path.join(directory, f"{space}.{os.getpid()}.attach")
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove()
        os.fchmod(listener.fileno(), 0o600)  # before bind: the file never has another mode
        # Through the descriptor: the name of a socket has 107 bytes at most.
        listener.bind(f"/proc/self/fd/{folder}/{os.path.basename(_path)}")
        listener.listen(_MOST)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


@problems.harmless("frtrace attach")
def start(looks: bool) -> bool:
    """Lets `frtrace attach` in: looks for every request, else for the debugger only."""
    global _listener, _looks, _watches_forks
    with _lock:
        _looks = _looks or looks
        if _listener is not None:
            return True
        ring = json.loads(_fr.status()).get("ring")
        if not ring:
            problems.add("frtrace attach: no ring directory, so no place for a socket")
            return False
        _listener = _listen(os.path.dirname(ring))
        atexit.register(_remove)
        if not _watches_forks:
            _watches_forks = True
            os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_accept, args=(_listener,), name="fr-attach", daemon=True).start()
    return True
