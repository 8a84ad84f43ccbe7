"""fr.check_replicas: tensors of every kind that a module may hold."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("adapter_built")

PRELUDE = """
import torch, torch.distributed as dist
import fr
dist.init_process_group("gloo")
first = dist.get_rank() == 0
class Model(torch.nn.Module):
    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
"""


def test_tensors_of_every_kind(launch):
    ran = launch(
        PRELUDE
        + """
kinds = [getattr(torch, name) for name in (
    "float16 bfloat16 float32 float64 complex64 complex128 int8 uint8 int16 int32 int64 bool "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz uint16 uint64").split()]
tensors = {f"{str(k)[6:]}_{n}": torch.ones(n).to(k) for k in kinds for n in (0, 1, 7, 1000)}
tensors |= {
    "scalar": torch.tensor(2.0),
    "strided": torch.arange(12.0).reshape(3, 4).T,
    "expanded": torch.ones(1).expand(9),
    "within": torch.arange(100, dtype=torch.uint8)[3:50],
    "conjugate": torch.full((3,), 1 + 2j).conj(),
    "negative": torch.full((3,), 1 + 2j).conj().imag,
    "quantized": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    "meta": torch.empty(3, device="meta"),
}
equal = fr.check_replicas(Model(tensors))
# All of these are other ones on rank 1.
others = {}
for name, tensor in tensors.items():
    if tensor.numel() > 0 and name not in ("meta", "quantized"):
        others[name] = tensor.clone() if first else (~tensor if tensor.dtype == torch.bool
                                                     else tensor.clone().zero_())
others["quantized"] = torch.quantize_per_tensor(torch.full((4,), 2.0 - first), 0.1, 0, torch.qint8)
others["shape"] = torch.zeros(2 + first)
if first:
    others["only here"] = torch.ones(1)
told = fr.check_replicas(Model(others))
result([equal, sorted(others), [line.split()[1] for line in told]])
dist.destroy_process_group()
""",
        n=2,
    )
    equal, others, told = ran[0].result
    assert equal == []
    assert sorted(told) == [name.split()[0] for name in others]
    assert ran[1].result[2] == told


def test_what_is_not_compared_is_told(launch):
    ran = launch(
        PRELUDE
        + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
mesh = init_device_mesh("cpu", (2,))
of = lambda placement, value: DTensor.from_local(torch.full((2,), value), mesh, [placement])
model = Model({
    "sparse": torch.eye(3).to_sparse(),
    "whole": of(Replicate(), 1.0 + first),
    "shard": of(Shard(0), 1.0 + first),
})
result([fr.check_replicas(model), fr.check_replicas(model, dist.group.WORLD)])
dist.destroy_process_group()
""",
        n=2,
    )
    line = "replicas: {} differs between rank 0 and rank 1, nothing tells which is right"
    whole, shard = line.format("whole"), line.format("shard")
    assert ran[0].result == ran[1].result == [[whole], [whole, shard]]
    assert "sparse is not compared: it is torch.sparse_coo" in ran[0].err
    assert "shard is not compared: it is sharded, and no group of replicas was given" in ran[0].err
