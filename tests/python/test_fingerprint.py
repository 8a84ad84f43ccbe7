"""Digests of tensors (FR_FINGERPRINT): every dtype, empty and strided tensors, in both ways: the
loop for the CPU, and torch's operations for devices (here on the CPU, too)."""

import ctypes
import math
import os

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from fr import adapter  # noqa: E402

MASK = 2**64 - 1
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")


def taker(name):
    adapter.load()
    function = adapter._library[name]
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint64 * 4]
    out = (ctypes.c_uint64 * 4)()

    def take(tensor):
        found = function(tensor._cdata, out)
        assert found != -1, "the check of a result"
        return tuple(out) if found else None

    return take


@pytest.fixture(scope="module", params=["fr_torch_digest", "fr_torch_device_digest"])
def digest(request):
    return taker(request.param)


@pytest.fixture(scope="module")
def both():
    return taker("fr_torch_digest"), taker("fr_torch_device_digest")


def expected(tensor):
    """From the definition: 64-bit words of the elements in order, the last filled with zeros."""
    data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    data += bytes(-len(data) % 8)
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
    weighted = sum(w * (2 * i + 1) for i, w in enumerate(words))
    return sum(words) & MASK, weighted & MASK


FLOATS = [
    getattr(torch, name)
    for name in (
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
]
OTHERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", FLOATS + OTHERS, ids=str)
@pytest.mark.parametrize("n", [1, 7, 5000, 70001])
def test_sums_of_every_dtype(digest, dtype, n):
    tensor = torch.arange(n).remainder(50).to(torch.float32).to(dtype)
    assert digest(tensor) == (0, 0, *expected(tensor))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_counts_of_every_float_dtype(digest, dtype):
    values = torch.tensor([1.0, math.nan, 0.5, -math.nan, math.inf, -math.inf, 0.0, math.inf])
    tensor = values.to(dtype)
    wide = tensor.to(torch.complex128 if dtype.is_complex else torch.float64)
    parts = torch.view_as_real(wide) if dtype.is_complex else wide
    nan, inf = int(parts.isnan().sum()), int(parts.isinf().sum())
    assert nan >= 2
    assert digest(tensor)[:2] == (nan, inf)


def test_what_is_not_contiguous_has_the_digest_of_its_copy(digest):
    base = torch.randn(37, 41, 3)
    base[3, 5, 1] = math.nan
    for view in (
        *(base.transpose(0, 2), base[::3, 1::2], base[5], base[:, :, 0]),
        *(base[0, 0, 0], base[0:1, 0:1].expand(4, 7, 3), base.bfloat16().permute(2, 0, 1)),
    ):
        assert digest(view) == digest(view.clone(memory_format=torch.contiguous_format)), view.shape


def test_exchanged_elements_and_turned_bits_change_it(digest):
    tensor = torch.randn(1000)
    other = tensor.clone()
    other[[10, 11]] = other[[11, 10]]
    assert digest(tensor) != digest(other)
    other = tensor.clone()
    other.view(torch.int32)[999] ^= 1
    assert digest(tensor) != digest(other)


def test_empty_and_unreadable_tensors(digest):
    assert digest(torch.empty(0, 5)) == (0, 0, 0, 0)
    assert digest(torch.eye(3).to_sparse()) is None
    assert digest(torch.randn(3, dtype=torch.complex64).conj()) is None
    assert digest(torch.empty(3, device="meta")) is None


class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, *_):
        raise AssertionError("the program sees an operation of the sample")


@pytest.mark.parametrize("state", [Refuses, torch.inference_mode, lambda: torch.autocast("cpu")])
def test_the_program_does_not_see_the_operations(both, state):
    cpu, device = both
    tensor = torch.randn(40000, requires_grad=True)
    with state():
        assert device(tensor) == cpu(tensor)
    assert tensor.grad_fn is None and tensor._version == 0


def test_a_tensor_that_begins_within_a_word(both):
    cpu, device = both
    base = torch.randn(1 << 15).bfloat16()
    base[7] = math.inf
    for first in range(1, 8):
        assert device(base[first:]) == cpu(base[first:])


def test_more_than_one_piece_and_2_31_elements(both):
    cpu, device = both
    n = (1 << 31) + 11
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free < 4 << 30:
        pytest.skip(f"{free >> 30} GiB of free memory")
    data = torch.zeros(n, dtype=torch.uint8)
    data[:: (1 << 20) + 7] = 0x7F  # NaN
    data[n - 3 :] = 0x7F
    tensor = data.view(torch.float8_e4m3fn)
    found = device(tensor)
    assert found == cpu(tensor) and found[0] > 2048


def test_memory_that_it_takes(both):
    """Beside the tensor: twice a piece of 32 MiB and a little, whatever the tensor's size."""
    from torch.profiler import ProfilerActivity, profile

    tensor = torch.zeros(160 << 20, dtype=torch.uint8).view(torch.float8_e5m2)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        both[1](tensor)
    changes = [e.cpu_memory_usage for e in seen.events() if e.name == "[memory]"]
    used = most = 0
    for change in changes:
        used += change
        most = max(most, used)
    assert 64 << 20 <= most <= 68 << 20, changes
    assert used == 0


def test_strided_tensors_beyond_a_piece_are_not_read(both):
    assert both[1](torch.zeros(4097, 4096).T) is None
