"""Hooks into torch.distributed: process groups made and destroyed, and the exit of the process.

The operations themselves are recorded by the adapter (adapter.py), or by fallback.py without an
adapter. No error in here may break the training script: problems.py keeps it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import glob
import importlib
import os
import re
import sys
import threading
import traceback
import typing
import urllib.parse

from . import _fr, adapter, caught, early, fallback, nccl, problems
from .problems import harmless

_TARGET = "torch.distributed.distributed_c10d"

_local = threading.local()
_lock = threading.RLock()
_started_generation = 0
_writer = None
_exception_noted = False
_patched = None  # the module distributed_c10d once hooked
_living: dict[str, int] = {}  # group name -> handle
_made_groups = False  # in this process, ever
_KEY_CHARS = 80
_MAX_STORE_CALLS = 256
_store_calls: set[str] = set()  # those that have a name of their own
_writes: dict[tuple, int] = {}  # (call, code, line) -> writes to the store made there


# ---------------------------------------------------------------- start


@harmless("start")
def ensure_started() -> bool:
    """Starts the recorder and the capture of operations; again in a forked child."""
    global _started_generation
    with _lock:
        if not _fr.start():
            return False
        generation = _fr.generation()
        if generation == _started_generation:
            return True
        _started_generation = generation
        _living.clear()
        if _writer is not None:
            _fr.register_writer(_writer)
        nccl.hook()  # torch's libraries may have been loaded since
        harmless("watching for caught exceptions")(caught.install)()
        if _patched is not None:
            _capture_operations()
        if _fr.option("FR_ATTACH") == "1":
            from . import attach

            attach.start(True)
        return True


def set_writer(fn) -> None:
    """Kept until the recorder starts: options may still change before the first group."""
    global _writer
    with _lock:
        if fn is not None and _writer is None:
            atexit.unregister(_deliver)
            atexit.register(_deliver)
        _writer = fn
        if _fr.enabled():
            _fr.register_writer(fn)


@harmless("delivering the last dump")
def _deliver() -> None:
    # Later, in libfr's own exit handler, Python is gone.
    if _writer is not None and _fr.enabled():
        if _exception_noted:
            _fr.shutdown(1)
        _fr.register_writer(None)  # waits for the work under way


def _capture_operations() -> None:
    try:
        _fr.set_layer("torch", adapter.load())
        fallback.remove()
    except Exception as problem:
        text = str(problem) or type(problem).__name__
        problems.add(f"no torch adapter ({text}); recording calls of torch.distributed.* only")
        fallback.install(_patched, handle_of)
        _fr.set_layer("torch", fallback.LAYER)


# ---------------------------------------------------------------- groups


def _ranks_of(pg, name: str, module) -> list[int] | None:
    helper = getattr(_local, "helper", None)
    if helper is not None and helper[0] == name:
        size, ranks = helper[1], helper[2]
        return list(ranks) if ranks else list(range(size if size > 0 else pg.size()))
    ranks = module._world.pg_group_ranks.get(pg)
    if ranks:
        return list(ranks)
    with contextlib.suppress(Exception):
        device = next(iter(pg._device_types))
        ranks = list(pg._get_backend(device).options.global_ranks_in_group)
        if len(ranks) == pg.size():
            return ranks
    if getattr(pg, "group_desc", "") == "default_pg":
        return list(range(pg.size()))
    return None


def _backend_of(pg, module) -> str:
    helper = getattr(_local, "helper", None)
    if helper is not None and helper[3]:
        return helper[3]
    with contextlib.suppress(Exception):
        return str(module._world.pg_map[pg][0])
    with contextlib.suppress(Exception):
        return pg.name()
    return ""


@harmless("registering a process group")
def _on_group(name, pg, module) -> None:
    global _made_groups
    if not ensure_started():
        return
    name = str(name)
    ranks = _ranks_of(pg, name, module)
    helper = getattr(_local, "helper", None)
    desc = helper[4] if helper is not None and helper[0] == name else None
    if not desc:
        with contextlib.suppress(Exception):
            desc = pg.group_desc
    _made_groups = True
    _living[name] = _fr.group(
        name,
        ranks=ranks,
        desc=str(desc or ""),
        backend=_backend_of(pg, module),
        own_rank=pg.rank(),
        n_ranks=pg.size(),
    )
    adapter.groups_changed()


@harmless("unregistering a process group")
def _on_group_gone(name) -> None:
    handle = _living.pop(str(name), None)
    if handle is not None and _fr.enabled():
        _fr.group_destroyed(handle)
    adapter.groups_changed()


def handle_of(pg) -> int:
    """fr's handle of a ProcessGroup, 0 when it is not known."""
    try:
        return _living.get(pg.group_name, 0)
    except Exception:
        return 0


# ---------------------------------------------------------------- lifecycle


@harmless("recording a call")
def _lifecycle_begin(name: str, group: int = 0, **details):
    return _fr.begin(group, name, _fr.LIFECYCLE, 0, **details)


@harmless("recording a call")
def _lifecycle_end(ticket, error: BaseException | None) -> None:
    if ticket is not None:
        if error is None:
            _fr.end(ticket)
        else:
            _fr.end(ticket, _fr.FAILED, f"{type(error).__name__}: {error}"[:400])


def _recorded(name: str, original, before=None, after=None, details=None):
    """A wrapper that records the call; before, after and details get (args, kwargs)."""

    @functools.wraps(original)
    def call(*args, **kwargs):
        group = before(args, kwargs) if before is not None else 0
        more = details(args, kwargs) if details is not None else None
        ticket = _lifecycle_begin(name, group or 0, **(more or {}))
        outer, _local.call = getattr(_local, "call", ""), name
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _lifecycle_end(ticket, error)
            raise
        finally:
            _local.call = outer
        _lifecycle_end(ticket, None)
        if after is not None:
            after(args, kwargs)
        return result

    return call


def _store_call(name: str, key) -> str:
    """ "store.set ready-#": the call and its key without numbers.

    Only the call where there are many different keys.
    """
    if isinstance(key, (list, tuple)):
        key = key[0] if key else ""
    full = f"{name} {re.sub(r'[0-9]+', '#', str(key))[:_KEY_CHARS]}"
    if full not in _store_calls and len(_store_calls) < _MAX_STORE_CALLS:
        _store_calls.add(full)
    return full if full in _store_calls else name


def _recorded_wait(name: str, original):
    """A wait for a key of the store is in flight like an operation."""
    recorded: dict[str, typing.Callable] = {}  # by the name that the record has

    @functools.wraps(original)
    def call(*args, **kwargs):
        # Calls that a recorded call makes itself are not recorded: its own record stands for them.
        if getattr(_local, "call", "") or not _fr.enabled():
            return original(*args, **kwargs)
        key = _argument(args, kwargs, 1, "keys", None) or kwargs.get("key", "")
        full = _store_call(name, key)
        if full not in recorded:
            recorded[full] = _recorded(full, original)
        return recorded[full](*args, **kwargs)

    return call


@harmless("recording a write to the store")
def _note_write(name: str, key, caller) -> None:
    """A write that has been made; in_numel is how many that call site has made."""
    if caller.f_globals.get("__name__", "").partition(".")[0] == "fr":
        return
    site = (name, caller.f_code, caller.f_lineno)
    _writes[site] = count = _writes.get(site, 0) + 1
    _fr.begin(0, _store_call(name, key), _fr.STORE, 0, -1, count)


def _noted_write(name: str, original):
    """Notes the call once it is made, unless it writes nothing or a recorded call made it."""

    @functools.wraps(original)
    def call(*args, **kwargs):
        result = original(*args, **kwargs)
        reads = name == "store.add" and _argument(args, kwargs, 2, "amount", 1) == 0
        if _fr.enabled() and not reads and not getattr(_local, "call", ""):
            _note_write(name, _argument(args, kwargs, 1, "key", ""), sys._getframe(1))
        return result

    return call


@harmless("recording calls of the store")
def _record_store(store) -> None:
    for name in ("wait", "get"):
        setattr(store, name, _recorded_wait(f"store.{name}", getattr(store, name)))
    for name in ("set", "add", "compare_set"):
        setattr(store, name, _noted_write(f"store.{name}", getattr(store, name)))


def _argument(args, kwargs, position: int, name: str, default):
    if name in kwargs:
        return kwargs[name]
    return args[position] if len(args) > position else default


def _program() -> str:
    """Name of the program; a child that multiprocessing starts has its parent's name."""
    path = sys.argv[0] if getattr(sys, "argv", None) else ""
    directory, name = os.path.split(path)
    if name == "__main__.py":  # python -m package
        name = os.path.basename(directory)
    return "python" if name in ("", "-c", "-m") else name.removesuffix(".py")


def _store_address(args, kwargs) -> str:
    """host:port or path where the ranks meet; "" for env://, whose variables libfr reads itself."""
    store = _argument(args, kwargs, 5, "store", None)
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if store is not None:
        host = getattr(store, "host", "")
        return f"{host}:{store.port}" if host else str(getattr(store, "path", ""))
    url = urllib.parse.urlsplit(str(_argument(args, kwargs, 1, "init_method", None) or ""))
    return {"tcp": url.netloc, "file": url.netloc + url.path}.get(url.scheme, "")


@harmless("naming the job")
def _name_job(store: str) -> None:
    _fr.set_job(store, _program())


@harmless("init_process_group")
def _before_init(args, kwargs):
    _name_job(harmless("finding the store")(_store_address)(args, kwargs) or "")
    rank = _argument(args, kwargs, 4, "rank", -1)
    world_size = _argument(args, kwargs, 3, "world_size", -1)
    if ensure_started() and isinstance(rank, int) and isinstance(world_size, int):
        _fr.set_identity(rank, world_size, -1)
    return 0


@harmless("init_process_group")
def _after_init(args, kwargs):
    # A store, MPI or a rendezvous URL may have given the rank.
    world = _patched.GroupMember.WORLD
    if world is not None and _fr.enabled():
        _fr.set_identity(world.rank(), world.size(), -1)
        _agree_on_run()
        _join_nodes()


def _agree_on_run() -> None:
    """A number for this run of the job: every rank proposes one, and the store keeps the first.

    It tells evidence of an earlier run under the same name apart, without the hosts' clocks.
    """
    proposed = f"{int.from_bytes(os.urandom(8), 'little') or 1:x}"
    try:
        kept = _patched._get_default_store().compare_set("fr/run", "", proposed)
        _fr.set_run(int(kept, 16))
    except Exception:  # no such store (MPI, a store without compare_set): the clocks tell, as far
        return


@harmless("joining the nodes of the job")
def _join_nodes() -> None:
    """Where the ranks meet in a TCPStore, their nodes meet there, too (libfr/net)."""
    store = _patched._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if getattr(store, "host", ""):
        adapter.join_nodes(str(store.host), int(store.port))


def _ranges(ranks) -> list[int]:
    """first, count, stride of each run of equal strides, flat."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs:
            first, count, stride = runs[-1]
            step = rank - (first + (count - 1) * stride)
            if step > 0 and (count == 1 or step == stride):
                runs[-1] = [first, count + 1, step]
                continue
        runs.append([rank, 1, 1])
    return [word for run in runs for word in run]


@harmless("reading the arguments of new_group")
def _new_group_details(args, kwargs) -> dict:
    """Which members the call names, and the ordinal that torch will name the group by.

    All ranks of the job must make the same calls in the same order, members or not.
    """
    if _argument(args, kwargs, 4, "use_local_synchronization", False):
        return {}  # only members call, and the name is another
    ranks = _argument(args, kwargs, 0, "ranks", None)
    if ranks is None:
        ranks = range(_patched.GroupMember.WORLD.size())
    elif _argument(args, kwargs, 7, "sort_ranks", True):
        ranks = sorted(ranks)
    words_of_a_tensor = 255
    words = _ranges(int(rank) for rank in ranks)
    return {"peer": int(_patched._world.group_count), "sizes": words[:words_of_a_tensor]}


@harmless("destroy_process_group")
def _before_destroy(args, kwargs):
    caught.note_handled()
    group = _argument(args, kwargs, 0, "group", None)
    return handle_of(group) if group is not None else 0


# ---------------------------------------------------------------- patching


def _patch(module) -> None:
    """Hooks a fully executed distributed_c10d."""
    global _patched
    if _patched is not None:
        return
    replaced = {}

    def replace(name, make):
        original = getattr(module, name, None)
        if callable(original):
            replaced[name] = (original, make(original))
            setattr(module, name, replaced[name][1])

    def register(original):
        @functools.wraps(original)
        def _register_process_group(group_name, group, *args, **kwargs):
            result = original(group_name, group, *args, **kwargs)
            _on_group(group_name, group, module)
            return result

        return _register_process_group

    def unregister(original):
        @functools.wraps(original)
        def _unregister_process_group(group_name, *args, **kwargs):
            _on_group_gone(group_name)
            return original(group_name, *args, **kwargs)

        return _unregister_process_group

    def unregister_all(original):
        @functools.wraps(original)
        def _unregister_all_process_groups(*args, **kwargs):
            for name in list(_living):
                _on_group_gone(name)
            return original(*args, **kwargs)

        return _unregister_all_process_groups

    def helper(original):
        @functools.wraps(original)
        def _new_process_group_helper(*args, **kwargs):
            try:
                size = _argument(args, kwargs, 0, "group_size", 0)
                ranks = _argument(args, kwargs, 2, "global_ranks_in_group", None)
                backend = _argument(args, kwargs, 3, "backend", "")
                name = _argument(args, kwargs, 5, "group_name", "")
                desc = _argument(args, kwargs, 10, "group_desc", None)
                _local.helper = (str(name), size, ranks, str(backend or ""), desc)
            except Exception as error:
                problems.add_error("reading a group's arguments", error)
            try:
                return original(*args, **kwargs)
            finally:
                _local.helper = None

        return _new_process_group_helper

    replace("_register_process_group", register)
    replace("_unregister_process_group", unregister)
    replace("_unregister_all_process_groups", unregister_all)
    replace("_new_process_group_helper", helper)
    replace(
        "init_process_group",
        lambda original: _recorded(
            "init_process_group", original, before=_before_init, after=_after_init
        ),
    )
    replace(
        "new_group",
        lambda original: _recorded("new_group", original, details=_new_group_details),
    )
    replace("split_group", lambda original: _recorded("split_group", original))
    replace(
        "destroy_process_group",
        lambda original: _recorded("destroy_process_group", original, before=_before_destroy),
    )
    if getattr(module, "Store", None) is not None:
        _record_store(module.Store)
    _patched = module
    rebind(replaced)
    if getattr(module, "GroupMember", None) is not None and module.GroupMember.WORLD is not None:
        _adopt(module)


def rebind(replaced) -> None:
    """Puts wrappers where torch's own modules hold the originals under the same name."""
    for place in ("torch.distributed", "torch.distributed.device_mesh"):
        module = sys.modules.get(place)
        for name, (original, wrapper) in replaced.items():
            if module is not None and getattr(module, name, None) is original:
                setattr(module, name, wrapper)


@harmless("taking over existing process groups")
def _adopt(module) -> None:
    if not ensure_started():
        return
    _after_init((), {})
    for pg, name in list(module._world.pg_names.items()):
        _on_group(name, pg, module)


class _Finder:
    """Hooks distributed_c10d right after it is executed, without importing torch for it."""

    def find_spec(self, name, path=None, target=None):
        if name != _TARGET:
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = getattr(spec, "loader", None)
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        original = loader.exec_module

        def exec_module(module):
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            original(module)
            harmless("hooking torch.distributed")(_patch)(module)

        try:
            loader.exec_module = exec_module
        except AttributeError as error:
            problems.add_error("hooking torch.distributed", error)
        return spec


# ---------------------------------------------------------------- exit of the process


def _first_cause(error):
    """The first exception of the chain; None if it is this one."""
    first, seen = error, {id(error)}
    while first is not None:
        cause = first.__cause__
        if cause is None and not first.__suppress_context__:
            cause = first.__context__
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        first = cause
    return None if first is error else first


def _place(error) -> str:
    frames = traceback.extract_tb(getattr(error, "__traceback__", None), limit=-1)
    return "".join(f", at {os.path.basename(f.filename)}:{f.lineno} in {f.name}" for f in frames)


def _message(error) -> str:
    """First and last line of the traceback text that an exception of another process carries."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("Traceback (most recent call last)" in line for line in lines[:4]):
        return f"{lines[0]} ... {lines[-1]}"
    return str(error).strip()


def _is_awaited() -> bool:
    """Whether other ranks of this job record on this machine: they then wait for a rank that fails
    before it records.

    If all ranks fail at their start, as for a misspelt option, nothing is written."""
    if "RANK" not in os.environ or _fr.generation() != 0:
        return False
    job = glob.escape(_fr.option("FR_JOB"))
    folder = os.path.join(glob.escape(_fr.option("FR_SHM_DIR")), f"fr-{os.getuid()}")
    return bool(glob.glob(os.path.join(folder, f"{job}.a*.ctl")))


def _note_exception(kind, error_type, error, trace) -> None:
    global _exception_noted
    if not _fr.enabled() and not (_is_awaited() and ensure_started()):
        return
    _exception_noted = True
    frames = [
        (f.filename, f.name, f.lineno or 0)
        for f in reversed(traceback.extract_tb(trace, limit=-32) if trace is not None else [])
    ]
    text = _message(error)
    tail = "; ".join(f"{os.path.basename(f)}:{line} in {name}" for f, name, line in frames[:3])
    if tail:
        text = f"{text[:400]}\n  at {tail[:160]}"
    first = _first_cause(error)
    if first is not None:
        what = f"{type(first).__name__}: {_message(first)}".split("\n")[0][:180]
        text += f"\n  first cause: {what}{_place(first)}"
    _fr.exit_record(kind, error_type.__name__, text, _fr.stack(frames) if frames else 0)


def _chain_excepthooks() -> None:
    previous = sys.excepthook

    @functools.wraps(previous)
    def excepthook(error_type, error, trace):
        harmless("noting an exception")(_note_exception)("exception", error_type, error, trace)
        previous(error_type, error, trace)

    sys.excepthook = excepthook

    previous_thread = threading.excepthook

    @functools.wraps(previous_thread)
    def thread_excepthook(args):
        # The process goes on: a note, not the cause of an exit.
        if args.exc_type is not SystemExit:
            with contextlib.suppress(Exception):
                if _fr.enabled():
                    name = args.thread.name if args.thread is not None else "?"
                    error = args.exc_value
                    what = f"{args.exc_type.__name__}: {_message(error)}"[:110]
                    text = f"exception in thread {name}: {what}{_place(error)}"
                    first = _first_cause(error)
                    if first is not None:
                        text += f"; first cause: {type(first).__name__}: {_message(first)}"
                    _fr.note(text)
        previous_thread(args)

    threading.excepthook = thread_excepthook


def _watch_processes() -> None:
    """An exception that ends a process of multiprocessing reaches no hook: that prints it itself,
    and torch.multiprocessing.spawn hands it to the parent and calls sys.exit in its place."""
    from multiprocessing.process import BaseProcess

    original = BaseProcess.run

    @functools.wraps(original)
    def run(self):
        try:
            original(self)
        except BaseException as error:
            harmless("noting an exception")(_note_end_of_process)(error)
            raise

    BaseProcess.run = run
    leave = os._exit

    @functools.wraps(leave)
    def _exit(status):
        # So ends what multiprocessing forks: past all exit handlers, libfr's among them.
        caller = sys._getframe(1).f_globals.get("__name__")
        if caller in ("multiprocessing.popen_fork", "multiprocessing.forkserver"):
            harmless("ending a process")(_end_of_fork)(status)
        leave(status)

    os._exit = _exit


def _end_of_fork(status) -> None:
    if _fr.enabled():
        _fr.shutdown(status)


def _note_end_of_process(error) -> None:
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code not in (None, 0) else None
    if error is not None and _fr.enabled():
        _note_exception("exception", type(error), error, error.__traceback__)


def _watch_sys_exit() -> None:
    """Python has thrown the traceback of SystemExit away when the process ends: fr notes its birth.

    Until 3.11 sys.exit makes the exception only when code first looks at it.
    """
    _fr.watch_system_exit()
    if sys.version_info >= (3, 12):
        return
    original = sys.exit

    @functools.wraps(original)
    def exit(status=None, /):
        try:
            original(status)
        except SystemExit:
            raise

    sys.exit = exit


def _guard_threads() -> None:
    """Threads of Python's that begin from now on; _set_ident is the first that each calls."""
    original = threading.Thread._set_ident

    @functools.wraps(original)
    def _set_ident(self):
        _fr.guard_thread()
        original(self)

    threading.Thread._set_ident = _set_ident


def _begin_exit():
    """The process has destroyed its groups, and Python now waits for its other threads."""
    if not (_fr.enabled() and _made_groups and not _living):
        return None
    own = threading.current_thread()
    if all(thread.daemon or thread is own for thread in threading.enumerate()):
        return None
    return _lifecycle_begin("interpreter_exit")


def _watch_exit() -> None:
    """A process that its threads keep alive is noticed by the watchdog, as any call that hangs."""
    original = threading._shutdown

    @functools.wraps(original)
    def _shutdown():
        ticket = harmless("recording the exit")(_begin_exit)()
        original()  # a wait that Ctrl-C ends has not completed: it stays in flight
        _lifecycle_end(ticket, None)
        if _made_groups:
            _fr.exit_begins()  # atexit's functions, multiprocessing's finalizers, __del__ methods

    threading._shutdown = _shutdown


# ---------------------------------------------------------------- entry


def _is_multiprocessings() -> bool:
    """A child that multiprocessing has begun, maybe one that still imports what it needs."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and (
        process.parent_process() is not None
        or getattr(process.current_process(), "_inheriting", False)
    )


@harmless("hooking torch.distributed")
def install() -> None:
    if _is_multiprocessings():  # a DataLoader's worker, or a rank: only a rank makes a group
        _fr.be_silent_child()
    else:
        harmless("watching before the first group")(early.watch)(ensure_started)
    harmless("NCCL")(nccl.install)()
    _name_job("")
    _chain_excepthooks()
    harmless("watching the exit")(_watch_exit)()
    harmless("guarding threads")(_guard_threads)()
    harmless("watching sys.exit")(_watch_sys_exit)()
    harmless("watching processes")(_watch_processes)()
    module = sys.modules.get(_TARGET)
    executed = module is not None and not getattr(module.__spec__, "_initializing", False)
    if executed:
        _patch(module)
    else:
        sys.meta_path.insert(0, _Finder())
