"""Small training jobs with the communication of large ones, and one fault each.

Every job is a function (fault, rank, world, steps). Where a fault can strike stands
`fault("site", fn)(...)`: that is fn itself, unless the plan of this run names this rank, step and
site. The jobs run on gloo, without a GPU; with REAL_DEVICE=cuda on NCCL, all ranks on one device,
which NCCL takes for as many nodes.
"""

import functools
import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH = 8
HOUR = 3600
DEVICE = os.environ.get("REAL_DEVICE", "cpu")
ON_GPU = DEVICE == "cuda"
FIRST_STEPS = 2 if ON_GPU else 0  # in which NCCL connects, which is slow on one device


class EndOfData(Exception):
    """This rank's loader ran out of batches: it leaves the loop, not the job."""


class Done:
    """Stands for the work handle of an operation that was not issued."""

    def wait(self):
        return True


# ---------------------------------------------------------------- faults


def resized(tensor):
    return torch.ones(tensor.numel() + 5, dtype=tensor.dtype)


def retyped(tensor):
    return tensor.to(torch.float64 if tensor.dtype == torch.float32 else torch.float32)


def load_batch():
    time.sleep(HOUR)


def spin():
    while True:
        pass


def nan_check():
    raise ValueError("loss is nan")


def occupy_device():
    """A kernel that spins for minutes: what this rank launches behind it does not start."""
    torch.cuda._sleep(1 << 40)


BEFORE = {
    "busy_device": occupy_device,
    "sleep": load_batch,
    "loop": spin,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "raise": nan_check,
    "exit0": lambda: sys.exit(0),
    "exit1": lambda: sys.exit(1),
}


class Faults:
    """The faults of one rank; `plan` is a list of {fault, rank, step, site, nth, ...}."""

    def __init__(self, plan, rank, progress=lambda step: None):
        self.plan = [f for f in plan if f["rank"] == rank]
        self.rank = rank
        self.progress = progress
        self.current = -1
        self.count = {}
        self.later = None  # of a swap: the call that comes second
        self.groups = []  # set by the job, for the faults
        self.sync_every = 1
        self.seen = []  # (step, site, nth, function): where a fault can strike

    def step(self, step):
        self.current = step
        self.count = {}
        # Where a training loop reads its loss: until then the host may be ahead of the device.
        if ON_GPU and (step <= FIRST_STEPS or step % self.sync_every == 0):
            torch.cuda.synchronize()
        self.progress(step + 1)
        for f in self.plan:
            if f["fault"] == "slow" and step >= f["step"]:
                time.sleep(0.08)

    def due(self, site):
        """The fault planned here and now, if any."""
        nth = self.count.get(site, 0)
        self.count[site] = nth + 1
        for f in self.plan:
            if (f["step"], f["site"], f["nth"]) == (self.current, site, nth):
                return f
        return None

    def __call__(self, site, fn):
        nth = self.count.get(site, 0)
        f = self.due(site)
        self.seen.append((self.current, site, nth, getattr(fn, "__name__", "call")))
        if self.later:
            first, self.later = fn, self.later

            def second(*args, **kwargs):
                result = first(*args, **kwargs)
                self.later()
                self.later = None
                return result

            return second
        if f is None:
            return fn
        name = f["fault"]
        if name in BEFORE:
            BEFORE[name]()
            return fn
        return functools.partial(getattr(self, name), f, fn)

    # ---- what is issued instead; `fn` and its arguments are what should have been

    def skip(self, f, fn, *args, **kwargs):
        return [] if fn is dist.batch_isend_irecv else Done()

    def extra(self, f, fn, *args, **kwargs):
        fn(*args, **{**kwargs, **({"async_op": False} if "async_op" in kwargs else {})})
        return fn(*args, **kwargs)

    def uneven(self, f, fn, *args, **kwargs):
        raise EndOfData

    def size(self, f, fn, tensor, *args, **kwargs):
        return fn(resized(tensor), *args, **kwargs)

    def dtype(self, f, fn, tensor, *args, **kwargs):
        return fn(retyped(tensor), *args, **kwargs)

    def redop(self, f, fn, tensor, *args, **kwargs):
        return fn(tensor, **{**kwargs, "op": dist.ReduceOp.MIN})

    def root(self, f, fn, tensor, src, group=None):
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        return fn(tensor, src=ranks[(ranks.index(src) + 1) % len(ranks)], group=group)

    def branch(self, f, fn, tensor, *args, group=None, **kwargs):
        out = [torch.zeros_like(tensor) for _ in range(dist.get_world_size(group))]
        return dist.all_gather(out, tensor, group=group, async_op=kwargs.get("async_op", False))

    def group(self, f, fn, *args, **kwargs):
        """Another group of this rank than the right one."""
        right = kwargs.get("group")
        wrong = next(g for g in [*self.groups, None] if g is not right)
        return fn(*args, **{**kwargs, "group": wrong})

    def split(self, f, fn, out, inp, out_splits=None, in_splits=None, **kwargs):
        """One element more for the next peer than that one expects."""
        n = dist.get_world_size(kwargs.get("group"))
        at = (dist.get_rank(kwargs.get("group")) + 1) % n
        in_splits = list(in_splits or [inp.numel() // n] * n)
        in_splits[at] += 2
        return fn(out, torch.ones(sum(in_splits)), out_splits, in_splits, **kwargs)

    def order(self, f, fn, items):
        """The same calls, at the same lines, the last one first."""
        return items[::-1]

    def swap(self, f, fn, *args, **kwargs):
        self.later = functools.partial(fn, *args, **kwargs)
        return Done()

    def peer(self, f, fn, tensor, peer, **kwargs):
        """Point to point with another member than the right one."""
        ranks = dist.get_process_group_ranks(kwargs.get("group") or dist.group.WORLD)
        others = [r for r in ranks if r not in (self.rank, peer)]
        return fn(tensor, others[0], **kwargs)


# ---------------------------------------------------------------- jobs


def loop(fault, steps, one_step):
    """Steps until the data ends."""
    try:
        for step in range(steps):
            fault.step(step)
            one_step(step)
    except EndOfData:
        pass
    fault.progress(HOUR)


def checkpoint(fault, rank, step, every=3):
    """Rank 0 writes, everybody waits for it."""
    if step % every == every - 1:
        if rank == 0:
            fault("save", os.getpid)()  # stands for torch.save
        fault("save_barrier", dist.barrier)()


def ddp(fault, rank, world, steps):
    """DistributedDataParallel with gradient accumulation, metrics, evaluation and checkpoints."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)), bucket_cap_mb=0.0002
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.ones(world * steps * 2 - 1, WIDTH))
    sampler = DistributedSampler(data, world, rank, shuffle=False, drop_last=False)
    batches = iter(DataLoader(data, batch_size=1, sampler=sampler))
    config = [{"lr": 0.01} if rank == 0 else None]
    fault("config", dist.broadcast_object_list)(config, src=0)

    def one_step(step):
        optimizer.zero_grad()
        with model.no_sync():
            (x,) = fault("batch", next)(batches)
            model(x).sum().backward()
        (x,) = fault("batch", next)(batches)
        fault("train", lambda: model(x).sum().backward())()
        optimizer.step()
        loss = torch.ones(1)
        fault("loss", dist.all_reduce)(loss, op=dist.ReduceOp.SUM)
        if step % 2:
            seen = [None] * world
            fault("metrics", dist.all_gather_object)(seen, {"rank": rank, "loss": float(loss)})
        if step % 3 == 0:
            stop = torch.tensor([0.0])
            fault("stop_flag", dist.broadcast)(stop, src=0)
        checkpoint(fault, rank, step)

    loop(fault, steps, one_step)
    fault("last_barrier", dist.barrier)()


def fsdp(fault, rank, world, steps, mesh=None):
    """FSDP2: parameters gathered per layer, gradients scattered, norm over the world."""
    torch.manual_seed(0)
    mesh = mesh or init_device_mesh(DEVICE, (world,), mesh_dim_names=("fsdp",))
    fault.groups = mesh.get_all_groups()
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def one_step(step):
        x = torch.ones(2, WIDTH)
        fault("batch", os.getpid)()
        loss = fault("forward", model)(x).sum()
        fault("backward", loss.backward)()
        optimizer.step()
        optimizer.zero_grad()
        norm = torch.ones(1)
        fault("grad_norm", dist.all_reduce)(norm, op=dist.ReduceOp.MAX)
        if step % 3 == 1:
            shard = torch.ones(4)
            parts = [torch.zeros(4) for _ in range(world)] if rank == 0 else None
            fault("gather_state", dist.gather)(shard, parts, dst=0)
        checkpoint(fault, rank, step)

    loop(fault, steps, one_step)
    fault("last_barrier", dist.barrier)()


def hsdp(fault, rank, world, steps):
    """Sharded inside of a node, replicated over the nodes."""
    mesh = init_device_mesh(DEVICE, (2, world // 2), mesh_dim_names=("replica", "shard"))
    fsdp(fault, rank, world, steps, mesh)


def mesh3d(fault, rank, world, steps, dims=None, microbatches=4):
    """Tensor x pipeline x data parallel, 1F1B, as in the large frameworks."""
    dims = dims or (world // 4, 2, 2)
    mesh = init_device_mesh(DEVICE, dims, mesh_dim_names=("dp", "pp", "tp"))
    dp, pp, tp = (mesh.get_group(name) for name in ("dp", "pp", "tp"))
    fault.groups = [tp, dp] if dims[2] > 1 else [dp]
    stages = dist.get_process_group_ranks(pp)
    stage = stages.index(rank)
    first, last = stage == 0, stage == len(stages) - 1
    before = None if first else stages[stage - 1]
    after = None if last else stages[stage + 1]

    def compute(site):
        h = torch.ones(WIDTH, WIDTH)
        fault(site, dist.all_reduce)(h, group=tp)
        fault(site + "_mlp", dist.all_reduce)(h.view(-1)[:32].clone(), group=tp)
        return h

    def forward():
        if not first:
            fault("recv_forward", dist.recv)(torch.zeros(WIDTH, WIDTH), before, group=pp)
        return compute("tp_forward")

    def exchange(site, out, peer):
        got = torch.zeros(WIDTH, WIDTH)
        ops = [dist.P2POp(dist.isend, out, peer, group=pp)]
        ops += [dist.P2POp(dist.irecv, got, peer, group=pp)]
        for work in fault(site, dist.batch_isend_irecv)(ops):
            work.wait()

    def one_step(step):
        fault("batch", os.getpid)()
        warmup = min(len(stages) - 1 - stage, microbatches)
        for _ in range(warmup):
            h = forward()
            fault("send_forward", dist.send)(h, after, group=pp)
        if microbatches > warmup and not first:
            fault("recv_forward", dist.recv)(torch.zeros(WIDTH, WIDTH), before, group=pp)
        for i in range(microbatches - warmup):
            h = compute("tp_forward")
            if not last:
                exchange("send_forward_recv_backward", h, after)
            g = compute("tp_backward")
            if i < microbatches - warmup - 1:
                if not first:
                    exchange("send_backward_recv_forward", g, before)
            elif not first:
                fault("send_backward", dist.send)(g, before, group=pp)
        for _ in range(warmup):
            fault("recv_backward", dist.recv)(torch.zeros(WIDTH, WIDTH), after, group=pp)
            g = compute("tp_backward")
            if not first:
                fault("send_backward", dist.send)(g, before, group=pp)
        buckets = fault("bucket_order", list)([96, 64, 64])
        works = [
            fault("dp_grads", dist.all_reduce)(torch.ones(n), group=dp, async_op=True)
            for n in buckets
        ]
        for work in works:
            work.wait()
        loss = torch.ones(1)
        fault("loss", dist.broadcast)(loss, src=stages[-1], group=pp)
        fault("grad_norm", dist.all_reduce)(torch.ones(1), op=dist.ReduceOp.MAX)
        if step % 4 == 2 and dist.get_rank(dp) == 0:  # only one replica evaluates
            for _ in range(2):
                fault("eval", dist.all_reduce)(torch.ones(16), group=tp)
        checkpoint(fault, rank, step)

    loop(fault, steps, one_step)
    fault("last_barrier", dist.barrier)()


def pipeline4(fault, rank, world, steps):
    """Four stages, the rest data parallel."""
    mesh3d(fault, rank, world, steps, dims=(world // 4, 4, 1), microbatches=6)


def torchpipe(fault, rank, world, steps):
    """torch.distributed.pipelining, two replicas where the world allows."""
    torch.manual_seed(0)
    mesh = init_device_mesh(DEVICE, (world // 4, 4), mesh_dim_names=("dp", "pp"))
    pp, dp = mesh.get_group("pp"), mesh.get_group("dp")
    fault.groups = [dp, pp]
    layer = nn.Linear(WIDTH, WIDTH)
    stage = PipelineStage(layer, dist.get_rank(pp), 4, torch.device(DEVICE), group=pp)
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, t: ((y - t) ** 2).sum())
    first, last = dist.get_rank(pp) == 0, dist.get_rank(pp) == 3

    def one_step(step):
        args = (torch.ones(8, WIDTH),) if first else ()
        kwargs = {"target": torch.ones(8, WIDTH)} if last else {}
        fault("batch", os.getpid)()
        fault("pipeline", schedule.step)(*args, **kwargs)
        for p in layer.parameters():
            fault("dp_grads", dist.all_reduce)(p.grad, group=dp)
        fault("grad_norm", dist.all_reduce)(torch.ones(1))
        checkpoint(fault, rank, step)

    loop(fault, steps, one_step)
    fault("last_barrier", dist.barrier)()


def moe(fault, rank, world, steps):
    """Expert parallel all-to-all with uneven splits, dense gradients over the world."""
    mesh = init_device_mesh(DEVICE, (world // 4, 4), mesh_dim_names=("dp", "ep"))
    dp, ep = mesh.get_group("dp"), mesh.get_group("ep")
    fault.groups = [ep, dp]
    own = dist.get_rank(ep)

    def one_step(step):
        fault("batch", os.getpid)()
        for _ in range(2):
            sent = [1 + (step + own + peer) % 3 for peer in range(4)]  # symmetric
            counts = torch.zeros(4)
            fault("counts", dist.all_to_all_single)(counts, torch.tensor(sent).float(), group=ep)
            n = sum(sent)
            tokens, mine = torch.ones(n), torch.zeros(n)
            fault("dispatch", dist.all_to_all_single)(mine, tokens, sent, sent, group=ep)
            fault("combine", dist.all_to_all_single)(tokens, mine, sent, sent, group=ep)
        load = torch.zeros(4 * 4)
        fault("router_load", dist.all_gather_into_tensor)(load, torch.ones(4), group=ep)
        fault("expert_grads", dist.all_reduce)(torch.ones(64), group=dp)
        fault("dense_grads", dist.all_reduce)(torch.ones(128))
        fault("dense_grads", dist.all_reduce)(torch.ones(96))
        checkpoint(fault, rank, step)

    loop(fault, steps, one_step)
    fault("last_barrier", dist.barrier)()


def ring(fault, rank, world, steps):
    """Context parallel: keys and values round a ring, both ways for the backward pass."""
    size = world // 2
    mesh = init_device_mesh(DEVICE, (2, size), mesh_dim_names=("dp", "cp"))
    dp, cp = mesh.get_group("dp"), mesh.get_group("cp")
    fault.groups = [cp, dp]
    ranks = dist.get_process_group_ranks(cp)
    at = ranks.index(rank)
    right, left = ranks[(at + 1) % size], ranks[(at - 1) % size]

    def rotate(site, to, source):
        kv, got = torch.ones(32), torch.zeros(32)
        ops = [dist.P2POp(dist.isend, kv, to, group=cp)]
        ops += [dist.P2POp(dist.irecv, got, source, group=cp)]
        for work in fault(site, dist.batch_isend_irecv)(ops):
            work.wait()

    def one_step(step):
        fault("batch", os.getpid)()
        for _ in range(size - 1):
            rotate("ring_forward", right, left)
        for _ in range(size - 1):
            rotate("ring_backward", left, right)
        lse = [torch.zeros(8) for _ in range(size)]
        fault("lse", dist.all_gather)(lse, torch.ones(8), group=cp)
        syncs = [("cp_grads", cp), ("dp_grads", dp), ("all_grads", dist.group.WORLD)]
        for site, group in fault("sync_order", list)(syncs):
            fault(site, dist.all_reduce)(torch.ones(48), group=group)
        fault("loss", dist.all_reduce)(torch.ones(1))
        checkpoint(fault, rank, step)

    loop(fault, steps, one_step)
    fault("last_barrier", dist.barrier)()


def hybrid(fault, rank, world, steps):
    """Groups by hand: nodes and rails, every rank calls new_group for all of them."""
    size = world // 2
    nodes = [list(range(n * size, (n + 1) * size)) for n in range(2)]
    rails = [[k, k + size] for k in range(size)]
    every = [(ranks, "node") for ranks in nodes] + [(ranks, "rail") for ranks in rails]
    if any(f["fault"] == "new_group_order" for f in fault.plan):
        every.reverse()
    groups = {}
    for ranks, desc in every:
        group = dist.new_group(ranks, group_desc=desc)
        if rank in ranks:
            groups[desc] = group
    node, rail = groups["node"], groups["rail"]
    fault.groups = [node, rail]
    leader = rank // size * size

    def one_step(step):
        fault("batch", os.getpid)()
        grads, shard = torch.ones(16 * size), torch.zeros(16)
        fault("scatter_grads", dist.reduce_scatter_tensor)(shard, grads, group=node)
        fault("rail_grads", dist.all_reduce)(shard, group=rail)
        fault("gather_params", dist.all_gather_into_tensor)(grads, shard, group=node)
        fault("node_stats", dist.reduce)(torch.ones(4), leader, group=node)
        inputs = [torch.ones(4) for _ in range(size)] if rank == leader else None
        fault("tasks", dist.scatter)(torch.zeros(4), inputs, src=leader, group=node)
        norms = [
            lambda: fault("rail_norm", dist.all_reduce)(torch.ones(1), group=rail),
            lambda: fault("node_norm", dist.all_reduce)(torch.ones(1), group=node),
            lambda: fault("world_norm", dist.all_reduce)(torch.ones(1)),
        ]
        for norm in fault("norm_order", list)(norms):
            norm()
        if step % 2:
            fault("lr", dist.broadcast)(torch.ones(1), src=0)
        if step % 3 == 0:
            seen = [None] * world
            fault("metrics", dist.all_gather_object)(seen, {"step": step})
        checkpoint(fault, rank, step)

    loop(fault, steps, one_step)
    if ON_GPU:
        fault("last_barrier", dist.barrier)()
    else:
        fault("last_barrier", dist.monitored_barrier)(timeout=timedelta(seconds=60))


JOBS = {  # name: (function, world size)
    "ddp": (ddp, 4),
    "fsdp": (fsdp, 4),
    "hsdp": (hsdp, 8),
    "mesh3d": (mesh3d, 8),
    "pipeline4": (pipeline4, 8),
    "torchpipe": (torchpipe, 8),
    "moe": (moe, 8),
    "ring": (ring, 6),
    "hybrid": (hybrid, 6),
}


def init(timeout_s, eager):
    """eager: NCCL makes communicators when groups are made, by splitting the first one."""
    timeout = timedelta(seconds=timeout_s)
    if not ON_GPU:
        return dist.init_process_group("gloo", timeout=timeout)
    torch.cuda.set_device(0)
    torch.set_default_device("cuda")
    device = torch.device("cuda", 0) if eager else None
    return dist.init_process_group("nccl", timeout=timeout, device_id=device)


def run(
    name, plan, steps, timeout_s=1800, progress=lambda step: None, at_end=lambda: None,
    eager=False, sync_every=1,
):  # fmt: skip
    """One rank; identity from the environment, as torchrun sets it."""
    job, _ = JOBS[name]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    init(timeout_s, eager)
    fault = Faults(plan, rank, progress)
    fault.sync_every = sync_every
    job(fault, rank, world, steps)
    if ON_GPU:
        torch.cuda.synchronize()
    at_end()
    dist.destroy_process_group()
    return fault


if __name__ == "__main__":  # torchrun --nproc-per-node N jobs.py NAME PLAN [STEPS]
    import fr  # noqa: F401

    run(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 8)
