"""Are the replicas of a model still equal? Digests of its parameters and buffers, over a group."""

from __future__ import annotations

from . import _fr

_CHUNK_WORDS = 1 << 22
_SHOWN = 16


def _digest(torch, tensor) -> tuple[int, int]:
    """Sums over the data as 64-bit words w(i), modulo 2^64: of w(i), and of w(i) * (2 i + 1)."""
    data = tensor.int_repr() if tensor.is_quantized else tensor.detach()
    data = data.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
    if data.numel() % 8:
        data = torch.nn.functional.pad(data, (0, -data.numel() % 8))
    words = data.clone().view(torch.int64) if data.storage_offset() % 8 else data.view(torch.int64)
    total = torch.zeros(2, dtype=torch.int64, device=words.device)
    for first in range(0, words.numel(), _CHUNK_WORDS):
        chunk = words[first : first + _CHUNK_WORDS]
        weights = torch.arange(first, first + chunk.numel(), device=words.device) * 2 + 1
        total += torch.stack((chunk.sum(), (chunk * weights).sum()))
    return tuple(total.tolist())


def _value(torch, tensor, group) -> tuple | str:
    """The value to compare, or why there is none: a rank that raised would leave others waiting."""
    if tensor.layout != torch.strided:
        return f"is {tensor.layout}"
    try:
        if hasattr(tensor, "to_local"):  # a DTensor
            if group is None and not all(p.is_replicate() for p in tensor.placements):
                return "is sharded, and no group of replicas was given"
            tensor = tensor.to_local()
        return (str(tensor.dtype), tuple(tensor.shape), *_digest(torch, tensor))
    except Exception as error:
        return f"cannot be read: {type(error).__name__}: {error}".splitlines()[0]


def _ranks(ranks: list[int]) -> str:
    """ "rank 3", "ranks 0-2,5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def _compare(name: str, values: dict[int, tuple]) -> str | None:
    """One line where ranks differ; the most common value is right, in a tie none is."""
    classes: dict[tuple, list[int]] = {}
    for rank, value in values.items():
        classes.setdefault(value, []).append(rank)
    if len(classes) == 1:
        return None
    largest, *rest = sorted(classes.values(), key=len, reverse=True)
    if len(largest) == len(rest[0]):
        sides = " and ".join(_ranks(side) for side in [largest, *rest][:4])
        return f"{name} differs between {sides}, nothing tells which is right"
    wrong = [rank for side in rest for rank in side]
    return f"{name} differs on {_ranks(wrong)}; {_ranks(largest)} agree{'s'[len(largest) > 1 :]}"


def check_replicas(module, group=None) -> list[str]:
    """Compares parameters and buffers of `module` over the ranks of `group`, bit by bit.

    All ranks of the group call it at the same place, as any collective; it waits for the device.
    Returns one line for each tensor that differs, the same on all ranks, and says the first of them
    on stderr, and what is not compared. Of a DTensor its local part is compared. Not for what
    differs by right: parameters that are sharded over the group, statistics of each rank's batches.
    """
    import torch
    import torch.distributed as dist

    tensors = [*module.named_parameters(), *module.named_buffers()]
    own = {name: _value(torch, t, group) for name, t in tensors if t.device.type != "meta"}
    world = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    everybody: list[dict] = [{}] * len(world)
    dist.all_gather_object(everybody, own, group=group)
    names = dict.fromkeys(name for digests in everybody for name in digests)
    lines, unread = [], []
    for name in names:
        values = {r: d.get(name, ()) for r, d in zip(world, everybody, strict=True)}
        why = next((value for value in values.values() if isinstance(value, str)), None)
        if why is not None:
            unread.append(f"replicas: {name} is not compared: it {why}")
        elif (line := _compare(name, values)) is not None:
            lines.append(f"replicas: {line}")
    if dist.get_rank() == world[0]:
        for line in lines[:_SHOWN]:
            _fr.log(1, line)
            _fr.note(f"fr: {line}")
        if len(lines) > _SHOWN:
            _fr.log(1, f"replicas: and {len(lines) - _SHOWN} more tensors differ")
        for line in unread[:_SHOWN]:
            _fr.log(1, line)
    return lines
