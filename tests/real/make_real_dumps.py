#!/usr/bin/env python3
"""Makes labelled dump sets from real gloo jobs: fr's dumps and those of PyTorch's own recorder.

    make_real_dumps.py OUT [--jobs ddp,mesh3d] [--faults skip,sleep] [--seeds 0-2] [--list]

A case is a directory OUT/<job>-<fault>-<seed> with `fr` and `torch` (the evidence) and
`truth.json`. torch is imported once; every rank is a fork of this process, which is what torchrun
does minus the import. Needs fr and torch with gloo in the interpreter; with REAL_DEVICE=cuda a GPU,
and the ranks use NCCL. OUT/sites, of a run on gloo, is as good there.
"""

import argparse
import gc
import json
import mmap
import os
import pathlib
import random
import shutil
import signal
import socket
import sys
import threading
import time
import traceback

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "2000"

import torch

import fr

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import jobs

STEPS = 8
LONG = 2000  # of a job that is not to end before its dumps are taken
DONE = -1  # instead of a step
# Without a step of any rank; fr dumps after FR_TIMEOUT_S. Ranks on one device take turns.
STALL_S = 9 if jobs.ON_GPU else 3.5
FIRST_STEP_S = 40
FR_TIMEOUT_S = 4 if jobs.ON_GPU else 2

COLLECTIVE = ("all_reduce", "all_gather", "broadcast", "reduce", "scatter", "gather", "barrier",
              "all_to_all_single", "all_gather_into_tensor", "reduce_scatter_tensor",
              "all_gather_object", "broadcast_object_list", "monitored_barrier")  # fmt: skip
P2P = ("send", "recv", "batch_isend_irecv")

# fault: (functions it can strike, kind, other kinds accepted for the same ranks)
FAULTS = {
    "sleep": (None, "missing", []),
    "loop": (None, "missing", []),
    "stop": (None, "missing", ["device"]),
    "kill": (None, "exited", []),
    "abort": (None, "exited", []),
    "raise": (None, "exited", []),
    "exit0": (None, "exited", []),
    "exit1": (None, "exited", []),
    "uneven": (("next", "getpid"), "missing", ["mismatch", "deadlock", "exited"]),
    "skip": (COLLECTIVE + P2P, "missing", ["mismatch", "deadlock", "exited"]),
    "extra": (COLLECTIVE + P2P[:2], "mismatch", ["missing", "deadlock", "exited"]),
    "size": (("all_reduce", "broadcast"), "mismatch", []),
    "dtype": (("all_reduce",), "mismatch", []),
    "redop": (("all_reduce",), "mismatch", []),
    "root": (("broadcast",), "mismatch", []),
    "branch": (("all_reduce",), "mismatch", []),
    "group": (("all_reduce",), "mismatch", ["missing", "deadlock"]),
    "split": (("all_to_all_single",), "mismatch", []),
    "swap": (COLLECTIVE, "deadlock", ["mismatch"]),
    "order": (("list",), "deadlock", ["mismatch"]),
    "peer": (("send", "recv"), "missing", ["mismatch", "deadlock"]),
    "save": (("getpid",), "missing", []),
    "node_sleep": (None, "missing", []),
    "node_kill": (None, "exited", []),
    "two_sleep": (None, "missing", []),
    "new_group_order": (None, "deadlock", ["mismatch", "missing"]),
    "busy_device": (None, "device", []),
    "flight": (None, "ok", []),
    "slow": (None, "slow", ["ok"]),
}
# Not in what PyTorch records of gloo: all members are in the same operation, as far as can be seen.
UNSEEN_BY_TORCH = {"redop", "root"}
SILENT = {"redop", "root", "dtype"}  # gloo may not notice
GPU_ONLY = {"busy_device"}
ENDS = {"kill", "abort", "raise", "exit0", "exit1", "node_kill"}


# ---------------------------------------------------------------- plans


def sites_of(job, out):
    """Where faults can strike, per rank: from one good run, kept for the next time."""
    path = out / "sites" / f"{job}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        Case(job, "sites", 0, out / "sites" / job, [], mode="hold").run()
        world = jobs.JOBS[job][1]
        sites = [json.loads((out / "sites" / job / f"sites.{r}").read_text()) for r in range(world)]
        path.write_text(json.dumps(sites))
    return json.loads(path.read_text())


# Neighbours in different groups (their inversion is a deadlock, not a mismatch in one group).
SWAPS = {
    ("dp_grads", "all_grads"),
    ("node_norm", "world_norm"),
    ("loss", "grad_norm"),
    ("expert_grads", "dense_grads"),
    ("dp_grads", "grad_norm"),
}


def suits(job, fault, seen, at):
    """Whether the fault does harm where the rank is to call seen[at]."""
    _, site, _, function = seen[at]
    functions = FAULTS[fault][0]
    if functions and function not in functions:
        return False
    if job == "pipeline4" and functions and site.startswith(("tp_", "eval")):
        return False  # groups of one
    if fault == "save":
        return site == "save"
    if fault == "group":
        return job not in ("ddp", "fsdp")  # those have one
    if fault == "swap":
        return at + 1 < len(seen) and (site, seen[at + 1][1]) in SWAPS
    if fault == "peer":
        return job == "pipeline4"  # others have no third member
    return True


def make_plan(job, fault, rng, sites):
    """Faults to inject, the guilty, and whether the job can have this fault."""
    world = len(sites)
    if fault == "new_group_order":
        if job != "hybrid":
            return None
        rank = rng.randrange(world)
        return [{"fault": fault, "rank": rank, "step": -1, "site": "", "nth": 0}], [rank]
    if fault == "flight":
        return [], []
    if fault == "slow":
        rank = rng.randrange(world)
        return [{"fault": "slow", "rank": rank, "step": 1, "site": "", "nth": 0}], [rank]
    step = rng.choice([2, 5]) if fault == "save" else rng.randrange(2, STEPS - 1)
    if fault in ("node_sleep", "node_kill", "two_sleep"):
        half = world // 2
        if fault == "two_sleep":  # in different halves
            guilty = [rng.randrange(half), half + rng.randrange(half)]
        else:
            node = rng.randrange(world // 2)
            guilty = [2 * node, 2 * node + 1]
        # Before anything else of the step, so that no one keeps the other from getting there.
        name = fault.split("_")[1]
        return [
            {"fault": name, "rank": r, "step": step, "site": "batch", "nth": 0} for r in guilty
        ], guilty
    found = []
    for rank, seen in enumerate(sites):
        for at, (when, site, nth, function) in enumerate(seen):
            if when == step and suits(job, fault, seen, at):
                found.append((rank, site, nth, function))
    if not found:
        return None
    # Sites first: frequent ones would crowd out the others.
    site = rng.choice(sorted({f[1] for f in found}))
    rank, site, nth, function = rng.choice([f for f in found if f[1] == site])
    name = "sleep" if fault == "save" else fault
    plan = {"fault": name, "rank": rank, "step": step, "site": site, "nth": nth, "fn": function}
    return [plan], [rank]


# ---------------------------------------------------------------- one case


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Case:
    """One run. Ranks count their steps in shared memory; when none moves, all are asked to dump."""

    def __init__(self, job, fault, seed, where, plan, guilty=(), mode="hold", timeout_s=1800):
        self.job, self.fault, self.seed, self.where, self.plan = job, fault, seed, where, plan
        self.guilty, self.mode, self.timeout_s = list(guilty), mode, timeout_s
        self.world = jobs.JOBS[job][1]
        rng = random.Random(f"{job} {fault} {seed}")
        self.skew = [rng.choice([0.0, 0.0, rng.random()]) for _ in range(self.world)]
        self.shared = memoryview(mmap.mmap(-1, 8 * (2 * self.world + 1))).cast("q")

    # ---- in a rank

    def be_rank(self, rank, port):
        log = os.open(self.where / "logs" / str(rank), os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(self.world),
            LOCAL_WORLD_SIZE=str(self.world), TORCHELASTIC_RESTART_COUNT="0",
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), FR_JOB=self.job,
            FR_DUMP_DIR=str(self.where / "fr"), FR_SHM_DIR=str(self.where / "shm"),
            FR_TIMEOUT_S=str(FR_TIMEOUT_S), FR_WARN_S="1",
        )  # fmt: skip
        if jobs.ON_GPU:  # NCCL takes the ranks for as many nodes
            os.environ.update(
                LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", NCCL_HOSTID=f"rank-{rank}",
                NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo", NCCL_MNNVL_ENABLE="0",
                NCCL_MAX_CTAS="2", NCCL_RAS_ENABLE="0",
            )  # fmt: skip
        threading.Thread(target=self.collect, args=(rank,), daemon=True).start()
        try:
            steps = LONG if self.fault in ("flight", "slow") else STEPS
            progress, at_end = self.progress_of(rank), lambda: self.at_end(rank)
            fault = jobs.run(
                self.job, self.plan, steps, self.timeout_s, progress, at_end,
                eager=self.seed % 2 == 1, sync_every=1 + self.seed % 3,
            )  # fmt: skip
            (self.where / f"sites.{rank}").write_text(json.dumps(fault.seen))
            progress(DONE)
        except Exception:
            victim = rank not in self.guilty
            if self.mode == "catch" and victim:  # as with a backend that does not notice
                traceback.print_exc()
                threading.Event().wait()
            if victim or self.seed % 2:  # a script that dumps when it fails
                self.torch_dump(rank)
            raise

    def at_end(self, rank):
        """Nothing hangs after some faults: results are wrong. A careful user dumps then, too."""
        if self.fault in SILENT:
            self.torch_dump(rank)
            fr.dump("at the end")

    def progress_of(self, rank):
        def progress(step):
            self.shared[1 + rank] = step

        return progress

    def torch_dump(self, rank):
        c10d = torch._C._distributed_c10d
        data = c10d._dump_nccl_trace() if jobs.ON_GPU else c10d._dump_fr_trace()
        part = self.where / "torch" / f".{rank}"
        part.write_bytes(data)
        part.rename(self.where / "torch" / f"trace_rank_{rank}")

    def collect(self, rank):
        while not self.shared[0]:
            time.sleep(0.05)
        time.sleep(self.skew[rank])
        self.torch_dump(rank)
        if self.fault in ("flight", "slow"):
            fr.dump("in flight")
        self.shared[1 + self.world + rank] = 1

    # ---- in the launcher

    def run(self):
        """False in a rank, which is to end now; True in the launcher, when all is collected."""
        shutil.rmtree(self.where, ignore_errors=True)
        for name in ("fr", "shm", "torch", "logs"):
            (self.where / name).mkdir(parents=True)
        port = free_port()
        alive = {}
        sys.stdout.flush()
        for rank in range(self.world):
            pid = os.fork()
            if pid == 0:
                self.be_rank(rank, port)
                raise SystemExit(0)
            alive[rank] = pid
        self.ends = {}
        last, moved, began, told = None, time.monotonic(), time.monotonic(), None
        try:
            while alive and time.monotonic() - began < 90:
                time.sleep(0.02)
                now = time.monotonic()
                for rank, pid in list(alive.items()):
                    got, status = os.waitpid(pid, os.WNOHANG)
                    if got:
                        del alive[rank]
                        self.ends[rank] = os.waitstatus_to_exitcode(status)
                        moved = now
                if self.mode == "torchrun" and told is None and any(self.ends.values()):
                    told = now
                if told and now - told > 0.3 and told > 0:
                    told = -1
                    for pid in alive.values():
                        os.kill(pid, signal.SIGTERM)
                state = list(self.shared[1 : 1 + self.world])
                if all(step == DONE for step in state):
                    break  # the interpreters of forks take their time to end
                if state != last:
                    last, moved = state, now
                if self.fault in ("flight", "slow") and state[0] >= 20:
                    break
                begun = max(state) > jobs.FIRST_STEPS or self.fault == "new_group_order"
                if now - moved > (STALL_S if begun else FIRST_STEP_S):
                    break
            self.shared[0] = 1
            end = time.monotonic() + 5
            while time.monotonic() < end and not self.collected(alive):
                time.sleep(0.02)
        finally:
            # All are frozen before any is killed, so that none sees another one die.
            for pid in alive.values():
                os.kill(pid, signal.SIGSTOP)
            for pid in alive.values():
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            for pid in alive.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def collected(self, alive):
        stopped = {f["rank"] for f in self.plan if f["fault"] == "stop"}
        fr_ranks = {p.name.split(".r")[1].split(".")[0] for p in (self.where / "fr").glob("*.r*.*")}
        return all(
            (self.shared[1 + self.world + rank] or rank in stopped) and str(rank) in fr_ranks
            for rank in alive
        )

    def harmless(self):
        return all(step == DONE for step in self.shared[1 : 1 + self.world])

    def struck(self):
        """Whether every guilty rank came to its step: ranks on one device may be too slow."""
        return all(self.shared[1 + f["rank"]] > f["step"] or self.shared[1 + f["rank"]] == DONE
                   for f in self.plan)  # fmt: skip

    def write_truth(self):
        functions, kind, others = FAULTS[self.fault]
        if self.fault == "order" and self.plan[0]["site"] == "bucket_order":
            kind, others = "mismatch", ["missing"]
        accept = [[kind, self.guilty]] + [[k, self.guilty] for k in others]
        if self.fault == "slow":
            accept = [["slow", self.guilty], ["ok", []]]
        if self.fault == "split":
            f = self.plan[0]
            accept += [["mismatch", sorted([f["rank"], self.next_in_ep(f["rank"])])]]
        torch_accept = list(accept)
        if self.fault in UNSEEN_BY_TORCH:
            torch_accept += [["undecided", []], ["transport", []], ["ok", []]]
        truth = {
            "job": self.job, "world": self.world, "fault": self.fault, "mode": self.mode,
            "timeout_s": self.timeout_s, "plan": self.plan, "kind": kind, "ranks": self.guilty,
            "accept": accept, "accept_torch": torch_accept, "ends": self.ends,
        }  # fmt: skip
        (self.where / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")

    def next_in_ep(self, rank):
        return rank // 4 * 4 + (rank + 1) % 4


def numbers(text):
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--jobs", default=",".join(jobs.JOBS))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--seeds", type=numbers, default=range(1))
    parser.add_argument("--per-fault", type=int, help="that many of the jobs, by chance, per fault")
    parser.add_argument("--for-s", type=float, default=1e9, help="begin no case after that long")
    parser.add_argument("--shuffled", action="store_true", help="faults in an order by chance")
    args = parser.parse_args()
    out = args.out.resolve()
    ends = time.monotonic() + args.for_s
    gc.freeze()  # else every rank spends a second on torch's modules when it ends
    faults = [f for f in args.faults.split(",") if jobs.ON_GPU or f not in GPU_ONLY]
    if args.shuffled:
        random.Random(str(args.seeds)).shuffle(faults)
    for fault in faults:
        for seed in args.seeds:
            names = args.jobs.split(",")
            if args.per_fault:
                random.Random(f"{fault} {seed}").shuffle(names)
            made = 0
            for job in names:
                if args.per_fault and made == args.per_fault:
                    break
                rng = random.Random(f"{job}/{fault}/{seed}")
                planned = make_plan(job, fault, rng, sites_of(job, out))
                if planned is None:
                    continue
                made += 1
                plan, guilty = planned
                mode = rng.choice(["hold", "torchrun", "catch"])
                timeout_s = rng.choice([1800, 1800, 3])
                if fault in ENDS and mode == "hold" and timeout_s == 3:
                    timeout_s = 1800
                where = out / f"{job}-{fault}-{seed}"
                if (where / "truth.json").exists() or time.monotonic() > ends:
                    continue
                case = Case(job, fault, seed, where, plan, sorted(guilty), mode, timeout_s)
                start = time.monotonic()
                case.run()
                if case.harmless() and fault not in SILENT:
                    print(f"{where.name:28} {mode:8} did no harm, left out", flush=True)
                    shutil.rmtree(where)
                    continue
                if not case.struck():
                    print(f"{where.name:28} {mode:8} ended before its fault, left out", flush=True)
                    shutil.rmtree(where)
                    continue
                case.write_truth()
                print(
                    f"{where.name:28} {mode:8} {time.monotonic() - start:5.1f} s, ended"
                    f" {case.ends}, torch {len(list((where / 'torch').iterdir()))}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
