"""frtrace check: which nodes, links and borders of a cluster do not work or are slow.

    srun --ntasks-per-node=8 frtrace check          # or: torchrun --nnodes=... -m fr.check

Rank 0 runs the planner (check_plan.py) and hands out rounds through a store. Each rank is an agent
that forks a process per test, which runs under fr (check_steps.py). What hangs is dumped and killed
at its deadline, and the dumps of all ranks of the test go to rank 0, which has frtrace read them:
the verdict on a failed test is fr's own. An agent itself never waits for a device or a peer."""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import datetime
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from pathlib import Path

from . import adapter
from .check_plan import Finding, Outcome, Planner
from .check_steps import STEPS

ENDED = "the process of the test ended"
INSIDE = "inside"
GRACE_S = 20.0  # time for an agent's work after a deadline: dump, kill, send
ABOUT = """Tests the nodes and links of a cluster, with a rank per GPU (without GPUs, per node):
which node, link or border does not work or is slow. Started by srun frtrace check, or by
torchrun ... -m fr.check."""
EXIT = """Exit status: 0 all is fine, 1 something is bad, 2 wrong usage, 4 something is bad and no
test says which node or link it is."""


def first_host(nodelist: str) -> str:
    """Of Slurm's list: n[03-05,9],m1 -> n03."""
    found = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodelist)
    return "".join(part or "" for part in found.groups()) if found else ""


class Place:
    """Which rank this is, and where the store is."""

    def __init__(self, env=os.environ):
        slurm = "RANK" not in env and "SLURM_PROCID" in env

        def number(torch_name, slurm_name, default):
            return int(env.get(slurm_name if slurm else torch_name, default))

        self.rank = number("RANK", "SLURM_PROCID", 0)
        self.world = number("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", env.get("SLURM_NTASKS", 1))
        self.local = number("LOCAL_RANK", "SLURM_LOCALID", 0)
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
        self.host = env.get("MASTER_ADDR") or (first_host(nodes) if slurm else "") or "127.0.0.1"
        free = 20000 + int(env.get("SLURM_JOB_ID", 0)) % 20000 if slurm else 0
        self.port = int(env.get("MASTER_PORT") or free)
        self.node = env.get("SLURMD_NODENAME") or socket.gethostname()
        self.owns_store = env.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and self.rank == 0

    def store(self, owner=False, timeout_s=60.0):
        import torch.distributed as dist

        patience = datetime.timedelta(seconds=timeout_s)
        made = dist.TCPStore(
            self.host, self.port, is_master=owner, timeout=patience, wait_for_workers=False
        )
        self.port = made.port
        return dist.PrefixStore("fr.check", made)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def await_keys(store, keys, seconds) -> bool:
    try:
        store.wait(keys, datetime.timedelta(seconds=max(seconds, 0.01)))
        return True
    except Exception:  # torch's DistStoreError is its own class only since 2.2
        return False


# --- the agent of a rank


def build_adapter():
    """Once, before a test whose deadline it would take."""
    import torch

    try:
        adapter.build(torch)
    except Exception as error:
        why = adapter.AdapterError(str(error))

        def refuse(_):
            raise why

        adapter.build = refuse


class Agent:
    def __init__(self, place):
        self.place = place
        self.store = place.store()

    def serve(self):
        build_adapter()
        me = {"node": self.place.node, "local": self.place.local}
        self.store.set(f"here/{self.place.rank}", json.dumps(me))
        for i in range(1 << 30):
            while not await_keys(self.store, [f"round/{i}"], 300):
                self.store.check(["end"])  # raises where the store is gone
            order = json.loads(self.store.get(f"round/{i}"))
            if "end" in order:
                self.store.set(f"bye/{self.place.rank}", "")
                return
            for test in order["tests"]:
                if self.place.rank in test["ranks"]:
                    answer = self.run(test | {"index": test["ranks"].index(self.place.rank)})
                    self.store.set(f"done/{i}/{self.place.rank}", json.dumps(answer))

    def run(self, test) -> dict:
        home = tempfile.mkdtemp(
            prefix="fr-check-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
        try:
            return self.watch(test, home, *self.spawn(test, home))
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def spawn(self, test, home):
        source, sink = os.pipe()
        pid = os.fork()
        if pid:
            os.close(sink)
            return pid, source
        try:
            os.close(source)
            die_with_parent()
            with open(f"{home}/log", "w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            answer = self.inside(test, home)
            with os.fdopen(sink, "w") as out:
                out.write(json.dumps(answer))
        finally:
            os._exit(0)

    def inside(self, test, home) -> dict:
        """In the process of the test, for fr a job of its own with the test's ranks."""
        for name in [n for n in os.environ if n.startswith(("FR_", "TORCHELASTIC_"))]:
            if name != "FR_CACHE_DIR":
                del os.environ[name]
        os.environ |= {
            "RANK": str(test["index"]),
            "WORLD_SIZE": str(len(test["ranks"])),
            "LOCAL_RANK": str(self.place.local),
            "FR_JOB": "check",
            "FR_DUMP_DIR": home,
            "FR_SHM_DIR": home,
            "FR_SIGNAL": "USR2",
            "FR_BUFFER_SIZE": "1024",
            "FR_WARN_S": "86400",
            "FR_TIMEOUT_S": "86400",
            "FR_VERDICT": "0",
            "FR_TRIGGER": "off",
            # gloo connects when data is to be sent: what hangs is then an operation
            "TORCH_GLOO_LAZY_INIT": "1",
        }
        try:
            import torch.distributed as dist

            store = self.place.store(timeout_s=test["deadline_s"])
            return STEPS[test["kind"]](test, dist.PrefixStore(test["prefix"], store)) | {"ok": True}
        except BaseException as error:
            traceback.print_exc()
            text = str(error).strip().splitlines() or [""]
            return {"ok": False, "error": f"{type(error).__name__}: {text[0][:300]}"}

    def watch(self, test, home, pid, source) -> dict:
        end = time.monotonic() + test["deadline_s"]
        text = b""
        over = f"over/{test['prefix']}"
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return self.hung(test, home, pid, source)
            if select.select([source], [], [], min(left, 0.5))[0]:
                more = os.read(source, 1 << 20)
                text += more
                if not more:
                    break
            elif len(test["ranks"]) > 1 and self.store.check([over]):
                end = min(end, time.monotonic() + 2)  # another rank has failed
        os.close(source)
        status = self.reap(pid, 10)
        if text:
            answer = json.loads(text)
        else:
            tail = Path(home, "log").read_text(errors="replace").strip().splitlines()[-1:]
            how = f"signal {status & 0x7F}" if status and status & 0x7F else "no result"
            answer = {"ok": False, "error": ": ".join([ENDED, how, *tail])}
        if not answer["ok"]:
            self.store.set(over, "")
            answer["evidence"] = self.evidence(home)
        return answer

    def hung(self, test, home, pid, source) -> dict:
        os.close(source)
        self.store.set(f"over/{test['prefix']}", "")
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR2)  # fr's watchdog dumps: no GIL, no device, no peer needed
        end = time.monotonic() + 5
        while not list(Path(home).glob("*.fr")) and time.monotonic() < end:
            time.sleep(0.05)
        answer = {"ok": False, "hung": True, "evidence": self.evidence(home)}
        os.kill(pid, signal.SIGKILL)
        if self.reap(pid, 3) is None:
            answer["error"] = f"process {pid} of the test cannot be killed (a driver or a disk?)"
        return answer

    @staticmethod
    def evidence(home) -> dict:
        """Dumps, else the ring, small enough for a store."""
        found = list(Path(home).glob("*.fr")) or list(Path(home).rglob("*.ring"))
        return {f.name: base64.b64encode(zlib.compress(f.read_bytes())).decode() for f in found[:1]}

    @staticmethod
    def reap(pid, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(0.005)
        return None


# --- rank 0


class Coordinator:
    def __init__(self, place, args):
        self.place = place
        self.args = args
        self.store = place.store(owner=place.owns_store)
        self.begin = time.monotonic()
        self.round = 0
        self.backend = args.backend
        self.silent: set[int] = set()

    def say(self, text):
        if self.args.verbose:
            at = time.monotonic() - self.begin
            print(f"check: {at:6.1f} s  {text}", file=sys.stderr, flush=True)

    def gather(self):
        """The ranks present; nodes in the order of their ranks, which schedulers sort by place."""
        await_keys(self.store, [f"here/{r}" for r in range(self.place.world)], self.args.join)
        here = {}
        for r in range(self.place.world):
            if self.store.check([f"here/{r}"]):
                here[r] = json.loads(self.store.get(f"here/{r}"))
            else:
                self.silent.add(r)
        self.missing = sorted(self.silent)
        self.nodes = list(dict.fromkeys(h["node"] for h in here.values()))
        self.rank_of = {(self.nodes.index(h["node"]), h["local"]): r for r, h in here.items()}
        self.say(f"{len(here)} of {self.place.world} ranks on {len(self.nodes)} nodes")

    def rounds(self, tests: dict) -> dict:
        """Runs tests (key: ranks and kind) all at once; an outcome each, in ranks."""
        self.round += 1
        orders = []
        for n, (kind, ranks) in enumerate(tests.values()):
            deadline = {"alone": 60, "oneway": 10}.get(kind, self.args.deadline)
            deadline += 0.1 * len(ranks) if kind == "group" else 0
            what = {"kind": kind, "ranks": ranks, "prefix": f"{self.round}.{n}"}
            orders.append(what | {"backend": self.backend, "deadline_s": deadline})
        begin = time.monotonic()
        self.store.set(f"round/{self.round - 1}", json.dumps({"tests": orders}))
        keys = {r: f"done/{self.round - 1}/{r}" for o in orders for r in o["ranks"]}
        await_keys(self.store, list(keys.values()), max(o["deadline_s"] for o in orders) + GRACE_S)
        answers = {}
        for r, key in keys.items():
            if self.store.check([key]):
                answers[r] = json.loads(self.store.get(key))
            else:
                self.silent.add(r)
        out = {key: self.outcome(o, answers) for key, o in zip(tests, orders, strict=True)}
        bad = [o for o in out.values() if not o.ok]
        kinds = ", ".join(sorted({f"{o['kind']} of {len(o['ranks'])}" for o in orders}))
        said = f"round {self.round}: {len(orders)} x {kinds}: {len(bad)} failed"
        self.say(f"{said}, {time.monotonic() - begin:.1f} s")
        return out

    def outcome(self, order, answers) -> Outcome:
        ranks = order["ranks"]
        silent = tuple(r for r in ranks if r not in answers)
        got = {r: answers[r] for r in ranks if r in answers}
        out = Outcome(not silent and all(a["ok"] for a in got.values()), silent=silent)
        for r, a in got.items():
            if "alone" in a:
                out.rates[r, r] = a["alone"]
            out.rates |= {(int(sender), r): rate for sender, rate in a.get("from", {}).items()}
            if order["kind"] == "oneway":
                out.heard |= {(s, r): s in a.get("heard", ()) for s in ranks if s != r}
        if not out.ok:
            out.why = self.verdict(order, got)
        return out

    def verdict(self, order, answers) -> str:
        """frtrace's verdict on the dumps of a failed test; else the first error."""
        errors = [f"{self.name_of(r)}: {a['error']}" for r, a in answers.items() if a.get("error")]
        errors.sort(key=lambda e: ENDED not in e)  # the others' errors come of that
        said, verdict = "", {"kind": "ok"}
        with tempfile.TemporaryDirectory(prefix="fr-check-") as home:
            for r, a in answers.items():
                for name, data in a.get("evidence", {}).items():
                    data = zlib.decompress(base64.b64decode(data))
                    Path(home, f"{r}-{Path(name).name}").write_bytes(data)
            found = shutil.which("frtrace", path=Path(sys.executable).parent) or "frtrace"
            with contextlib.suppress(OSError, ValueError, KeyError, subprocess.TimeoutExpired):
                ran = subprocess.run(
                    [found, "--json", home], capture_output=True, text=True, timeout=60
                )
                verdict = json.loads(ran.stdout)["verdict"]
        if any(a.get("hung") for a in answers.values()) and verdict["kind"] != "ok":
            said = verdict["summary"]
        if errors and (not said or verdict["kind"] == "undecided"):
            return errors[0]
        return (
            said + self.whereabouts(order["ranks"], verdict) if said else "it did not end in time"
        )

    def whereabouts(self, ranks, verdict) -> str:
        """Which nodes the ranks of the verdict are, and where the first blamed one stood."""
        named = range(len(ranks)) if len(ranks) <= 4 else sorted(verdict["ranks"])[:4]
        text = "".join(f", rank {i} is {self.name_of(ranks[i])}" for i in named)
        site = next((b["site"] for b in verdict["blamed"] if b.get("site")), None)
        if site:
            at = f"{Path(site['file']).name}:{site['line']} {site['function']}"
            text += f", and stands at {at}" if len(verdict["blamed"]) == 1 else ""
        return f" ({text[2:]})" if text else ""

    def name_of(self, rank):
        ((node, local),) = [key for key, r in self.rank_of.items() if r == rank]
        several = sum(n == node for n, _ in self.rank_of) > 1
        return self.nodes[node] + (f"/{local}" if several else "")

    def run(self):
        """Findings in ranks, each with its rail; INSIDE: between the ranks of a node."""
        self.gather()
        nodes, rails = {}, {}
        for (node, local), r in sorted(self.rank_of.items()):
            nodes.setdefault(node, []).append(r)
            rails.setdefault(local, []).append(r)
        if len(nodes) == 1 or len(rails) == 1:
            rails, nodes = {0: sorted(self.rank_of.values())}, {}
        self.rails = len(rails)
        findings = [(None, Finding("undecided", (r,), what="no answer")) for r in self.missing]
        inside = {n: Planner(ranks, self.args.slow) for n, ranks in nodes.items()}
        findings += [(INSIDE, f) for _, f in self.planned(inside)]
        out = {r for _, f in findings if f.kind in ("node", "undecided") for r in f.units}
        left = {rail: [r for r in ranks if r not in out] for rail, ranks in rails.items()}
        across = {rail: Planner(rs, self.args.slow, bool(nodes)) for rail, rs in left.items()}
        found = self.planned(across)
        # a rank that is bad with other nodes, and so with those of its own
        bad = {r for _, f in found if f.kind == "node" for r in f.units}
        findings = [
            (k, f) for k, f in findings if f.kind != "link" or bad.isdisjoint(f.units + f.others)
        ]
        return self.joined(findings + found)

    def planned(self, planners) -> list:
        """(key, finding) of all planners, whose rounds are run together."""
        steps = {key: p.steps() for key, p in planners.items()}
        outcomes = dict.fromkeys(steps)
        findings = []
        while steps:
            tests = {}
            for key in list(steps):
                try:
                    for t in steps[key].send(outcomes[key]):
                        tests[key, t] = (t.kind, list(t.units))
                except StopIteration as done:
                    findings += [(key, f) for f in done.value]
                    del steps[key]
            outcomes = {key: {} for key in steps}
            for (key, t), outcome in (self.rounds(tests) if tests else {}).items():
                outcomes[key][t] = outcome
        return findings

    def sides(self, rail, f):
        return [[self.node_of(r, rail == INSIDE) for r in side] for side in (f.units, f.others)]

    def joined(self, findings):
        """Merges the findings of all rails about the same nodes into one, of the worst rail."""
        same = {}
        for rail, f in findings:
            at = self.sides(rail, f)
            same.setdefault((f.kind, f.what, f.way, str(at)), []).append((rail, f))
        out = []
        for group in same.values():
            whole = len(group) == self.rails > 1 and group[0][0] not in (None, INSIDE)
            out += [(None, min(group, key=lambda g: g[1].ratio)[1])] if whole else group
        return out

    def node_of(self, rank, inside=False):
        """A rank stands for its node, unless all ranks are on one node."""
        if rank in self.missing:
            return f"rank {rank}"
        name = self.name_of(rank)
        return name if inside or len(self.nodes) == 1 else name.partition("/")[0]


# --- what is printed


def folded(names) -> str:
    """As Slurm writes them: n[3-5,9],m1"""
    groups = {}
    for name in sorted(set(names)):
        found = re.fullmatch(r"(.*?)(\d+)", name)
        key = (
            (found[1], len(found[2]) if len(found[2]) > 1 and found[2][0] == "0" else 0)
            if found
            else (name, -1)
        )
        groups.setdefault(key, []).append(int(found[2]) if found else 0)
    out = []
    for (head, width), numbers in groups.items():
        numbers = sorted(numbers)
        runs = []
        for n in numbers:
            if runs and runs[-1][1] == n - 1:
                runs[-1][1] = n
            else:
                runs.append([n, n])
        parts = [
            f"{a:0{max(width, 0)}}" + (f"-{b:0{max(width, 0)}}" if b > a else "") for a, b in runs
        ]
        plain = width >= 0 and (len(parts) > 1 or "-" in parts[0])
        out.append(
            head if width < 0 else f"{head}[{','.join(parts)}]" if plain else head + parts[0]
        )
    return ",".join(out)


def sentence(c: Coordinator, rail, f: Finding) -> str:
    where = f", rail {rail}" if isinstance(rail, int) and c.rails > 1 else ""
    a, b = map(folded, c.sides(rail, f))
    why = f": {f.why}" if f.why else ""
    slow = f"{f.rate:.3g} GB/s, median {f.median:.3g} of {f.of} pairs"
    if f.what == "no answer":
        return f"{a}: no answer: the node, its process, or its way to {c.place.host}"
    if f.what == "alone":
        return f"{a}{where}: fails alone{why}"
    if f.what == "slow alone":
        return f"{a}{where}: {f.rate:.3g} GFLOP/s alone, median {f.median:.3g} of {f.of}"
    if f.what == "together":
        return f"{a} and {b}{where}: fail together, and work in smaller groups{why}"
    if f.kind == "node":
        way = {"both": "", "out": " sending to", "in": " receiving from"}[f.way]
        others = f"the {f.tried} others tried"
        if f.what == "slow":
            return f"{a}{where}:{way or ' with'} {others} {slow}"
        return f"{a}{where}: no data{way or ' between it and'} {others}{why}"
    arrow = {"both": "↔", "out": "→", "in": "←"}[f.way]
    at = f"{a} {arrow} {b}{where}"
    links = f" ({f.tried} links)" if f.kind == "border" else ""
    return f"{at}: {slow if f.what == 'slow' else 'no data' + why}{links}"


def excluded(c: Coordinator, findings) -> list[str]:
    """Nodes without which the others work. For a border the smaller side; for equal halves none."""
    names = []
    for _, f in findings:
        ends = f.units + (f.others if f.kind == "link" else ())
        halves = f.kind == "border" and len(f.units) == len(f.others)
        pair = f.kind == "link" and len(c.nodes) == 2
        if not halves and not pair and f.what != "together" and len(c.nodes) > 1:
            names += [c.node_of(r) for r in ends if r not in c.missing]
    return sorted(set(names))


def report(c: Coordinator, findings, as_json: bool) -> int:
    certain = [f for _, f in findings if f.kind != "undecided"]
    status = 1 if certain else 4 if findings else 0
    lines = [sentence(c, rail, f) for rail, f in findings]
    out = folded(excluded(c, findings))
    seconds = time.monotonic() - c.begin
    if as_json:
        listed = []
        for (rail, f), text in zip(findings, lines, strict=True):
            seen = {"rate": f.rate, "median": f.median, "of": f.of} if f.median else {}
            seen |= {"why": f.why} if f.why else {}
            sides = dict(zip(("nodes", "others"), c.sides(rail, f), strict=True))
            listed.append(
                {"kind": f.kind, "what": f.what, "way": f.way, "rail": rail, "text": text}
                | sides
                | seen
            )
        whole = {"schema": "frtrace.check/1", "status": status, "nodes": c.nodes, "rails": c.rails}
        whole |= {"backend": c.backend, "rounds": c.round, "seconds": round(seconds, 1)}
        print(json.dumps(whole | {"findings": listed, "exclude": out}, indent=1), flush=True)
        return status
    for line in lines:
        print(line)
    if out:
        print(f"--exclude={out}")
    said = f"{len(findings)} bad" if findings else "all fine"
    rails = f", {c.rails} rails" if c.rails > 1 else ""
    print(
        f"check: {said}: {len(c.rank_of)} ranks on {len(c.nodes)} nodes{rails}, {c.backend},"
        f" {c.round} rounds, {seconds:.1f} s",
        flush=True,
    )
    return status


def ended(*_):
    raise SystemExit(128 + signal.SIGTERM)  # through what cleans up


def coordinate(place, args) -> int:
    c = Coordinator(place, args)
    agent = os.fork()
    if not agent:
        die_with_parent()
        signal.signal(signal.SIGTERM, ended)
        with contextlib.suppress(BaseException):
            Agent(place).serve()
        os._exit(0)
    try:
        findings = c.run()
        return report(c, findings, args.json)
    finally:
        c.store.set(f"round/{c.round}", json.dumps({"end": True}))
        byes = [f"bye/{r}" for r in range(place.world) if r not in c.silent]
        await_keys(c.store, byes, 5)
        if Agent.reap(agent, 2) is None:
            os.kill(agent, signal.SIGKILL)


def arguments():
    p = argparse.ArgumentParser(
        prog="frtrace check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=ABOUT,
        epilog=EXIT,
    )
    p.add_argument("--json", action="store_true", help="as JSON (schema frtrace.check/1)")
    p.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl where there are GPUs")
    p.add_argument(
        "--slow", type=float, help="slow is below this part of the median; default: 0.8, gloo 0.25"
    )
    p.add_argument("--deadline", type=float, help="seconds for a test; default: 60, gloo 20")
    p.add_argument(
        "--join", type=float, default=120, help="seconds to wait for all ranks; default: 120"
    )
    p.add_argument("-v", "--verbose", action="store_true", help="a line per round on stderr")
    args = p.parse_args()
    gpus = Path("/dev/nvidiactl").exists()
    args.backend = args.backend or ("nccl" if gpus else "gloo")
    args.slow = args.slow or {"nccl": 0.8, "gloo": 0.25}[args.backend]
    args.deadline = args.deadline or {"nccl": 60, "gloo": 20}[args.backend]
    return args


def main() -> int:
    args = arguments()
    place = Place()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # waits that run out are no news
    try:
        import torch.distributed  # noqa: F401  once, before the forks
    except ImportError as error:
        print(f"frtrace check: needs torch: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, ended)
    if place.rank == 0:
        return coordinate(place, args)
    try:
        Agent(place).serve()
    except Exception as error:  # rank 0 is gone, or out of reach
        print(f"frtrace check: rank {place.rank} on {place.node}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
