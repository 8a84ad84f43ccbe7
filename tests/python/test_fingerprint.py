"""Digests of tensors (FR_FINGERPRINT): every dtype, empty and strided tensors."""

import ctypes
import math

import pytest

torch = pytest.importorskip("torch")

from fr import adapter  # noqa: E402

MASK = 2**64 - 1
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")


@pytest.fixture(scope="module")
def digest():
    adapter.load()
    function = adapter._library.fr_torch_digest
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint64 * 4]
    out = (ctypes.c_uint64 * 4)()

    def take(tensor):
        return tuple(out) if function(tensor._cdata, out) else None

    return take


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
@pytest.mark.parametrize("n", [1, 7, 5000])
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
