"""What a rank does in one test of `frtrace check`. Each runs in a process of its own, under fr."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import struct
import time

SMALL_BYTES = 64 << 10
# of one message between two ranks, by backend: alone on their links, and with all others
LARGE_BYTES = {"gloo": (8 << 20, 1 << 20), "nccl": (256 << 20, 32 << 20)}
TRIES_S = 0.25  # so long a message is sent again and again; the best counts, since others disturb
SWEEP_S = 5.0  # at most so long for all messages that a rank of a group receives and sends
PATIENCE = 8  # times that; a message that would take longer is not sent: the small one has told


def device_of(backend):
    import torch

    if backend != "nccl":
        torch.set_num_threads(1)
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def settle(device):
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def alone(test, store):
    """Products of matrices of zeros and ones, whose sums are exact: {"GFLOP/s": best}."""
    import torch

    device = device_of(test["backend"])
    n = 4096 if device.type == "cuda" else 512
    made = torch.Generator().manual_seed(n)
    a, b = (torch.randint(0, 2, (n, n), generator=made).float().to(device) for _ in "ab")
    expected = a.double() @ b.double().sum(1)
    rates = []
    # of the processor, its own time: what else runs there does not count
    clock = time.perf_counter if device.type == "cuda" else time.thread_time
    for _ in range(20):
        settle(device)
        begin = clock()
        product = a @ b
        settle(device)
        rates.append(2 * n**3 / (clock() - begin) / 1e9)
        if not torch.equal(product.double().sum(1), expected):
            raise ArithmeticError(f"a product of two matrices on {device} is wrong")
    return {"alone": max(rates)}


def exchange(test, store):
    """All ranks of the test reduce a tensor, then each sends to each other, in turns such that a
    rank has one partner at a time: {"from": {rank: GB/s}}, as this rank received it."""
    import torch
    import torch.distributed as dist

    rank, ranks = test["index"], test["ranks"]
    device = device_of(test["backend"])
    patience = datetime.timedelta(seconds=10 * test["deadline_s"])
    dist.init_process_group(
        test["backend"], store=store, rank=rank, world_size=len(ranks), timeout=patience
    )
    total = torch.full((1024,), rank + 1.0, device=device)
    dist.all_reduce(total)
    if not bool((total == len(ranks) * (len(ranks) + 1) / 2).all()):
        raise ArithmeticError("the sum of an all_reduce is wrong")
    large = LARGE_BYTES[test["backend"]][len(ranks) > 2]
    buffers = [torch.ones(size, dtype=torch.uint8, device=device) for size in (SMALL_BYTES, large)]
    rates = {}
    turns = len(ranks) - 1 + len(ranks) % 2
    seconds = min(TRIES_S, SWEEP_S / turns / 2)
    for turn in range(turns):
        partner = partner_of(rank, turn, len(ranks))
        if partner is None:
            continue
        for sender in sorted((rank, partner)):
            if sender == rank:
                send(buffers, partner, device)
            else:
                rates[ranks[partner]] = receive(buffers, partner, device, seconds)
    dist.barrier()
    dist.destroy_process_group()
    return {"from": rates}


def partner_of(rank, turn, n):
    """The circle method: over all turns each meets each once; None: it rests in this one."""
    even = n + n % 2
    last = even - 1
    if rank == last:
        partner = turn
    elif rank == turn:
        partner = last
    else:
        partner = (2 * turn - rank) % last
    return partner if partner < n else None


def send(buffers, partner, device):
    import torch
    import torch.distributed as dist

    wanted = torch.zeros(1, dtype=torch.int64, device=device)
    while True:
        dist.recv(wanted, partner)
        if int(wanted) < 0:
            return
        dist.send(buffers[int(wanted)], partner)
        settle(device)


def receive(buffers, partner, device, seconds):
    """The best rate in GB/s; the larger message only where it does not take too long."""
    import torch
    import torch.distributed as dist

    best, tried = 0.0, 0
    first = time.perf_counter()
    while tried < 5 or time.perf_counter() - first < seconds:
        which = tried > 1
        if which and buffers[1].numel() / 1e9 / best > PATIENCE * seconds:
            break
        tried += 1
        into = torch.zeros_like(buffers[which])
        settle(device)
        dist.send(torch.full((1,), int(which), dtype=torch.int64, device=device), partner)
        begin = time.perf_counter()
        dist.recv(into, partner)
        settle(device)
        best = max(best, into.numel() / (time.perf_counter() - begin) / 1e9)
        if not bool(into.all()):
            raise ArithmeticError("data that was received is not what was sent")
    dist.send(torch.full((1,), -1, dtype=torch.int64, device=device), partner)
    return best


def own_address():
    """Of the interface that gloo takes: the one named, else that of the host's name."""
    name = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME") or ""
    if name and not set(name) & set("^=,"):
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s, contextlib.suppress(OSError):
            asked = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(s.fileno(), 0x8915, asked)[20:24])  # SIOCGIFADDR
    return socket.gethostbyname(socket.gethostname())


def oneway(test, store):
    """Datagrams to the other rank and from it: {"heard": [rank]}."""
    rank, ranks = test["index"], test["ranks"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind((own_address(), 0))
        s.settimeout(0.1)
        store.set(f"udp{rank}", "{}:{}".format(*s.getsockname()))
        host, port = store.get(f"udp{1 - rank}").decode().split(":")
        word = test["prefix"].encode()
        heard = False
        end = time.monotonic() + 3
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                s.sendto(word, (host, int(port)))
            with contextlib.suppress(OSError):
                heard |= s.recv(200) == word
    return {"heard": [ranks[1 - rank]] if heard else []}


STEPS = {"alone": alone, "pair": exchange, "group": exchange, "oneway": oneway}
