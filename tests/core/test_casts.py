"""Casts, judged by torch, and for the f8 kinds by arithmetic on the definition of each."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ckptio import DType, OptionError, UnsupportedError
from ckptio.casts import Caster, can_overflow, check_target, count_overflow
from golden import golden

pytestmark = pytest.mark.filterwarnings("error")

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(20240326)

TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F8_E4M3FN: torch.float8_e4m3fn,
    DType.F8_E4M3FNUZ: torch.float8_e4m3fnuz,
    DType.F8_E5M2: torch.float8_e5m2,
    DType.F8_E5M2FNUZ: torch.float8_e5m2fnuz,
    DType.F8_E8M0FNU: torch.float8_e8m0fnu,
}
TARGETS = [dtype for dtype in DType if dtype.is_float and dtype is not DType.F8_E8M0FNU]
SOURCES = [*TARGETS, DType.F8_E8M0FNU]
PAIRS = [(source, target) for source in SOURCES for target in TARGETS if source is not target]
TORCH_PAIRS = [(source, target) for source, target in PAIRS if source in TORCH and target in TORCH]

# Exponent bits, mantissa bits, bias, as the names say (without b11: 2^(e-1)-1, and one more for fnuz).
F8 = {
    DType.F8_E3M4: (3, 4, 3),
    DType.F8_E4M3: (4, 3, 7),
    DType.F8_E4M3B11FNUZ: (4, 3, 11),
    DType.F8_E4M3FN: (4, 3, 7),
    DType.F8_E4M3FNUZ: (4, 3, 8),
    DType.F8_E5M2: (5, 2, 15),
    DType.F8_E5M2FNUZ: (5, 2, 16),
}
NO_INFINITY = {DType.F8_E4M3FN, DType.F8_E4M3B11FNUZ, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ}
ONE_NAN = {DType.F8_E4M3B11FNUZ, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ}

# The middle between the largest value and the one that would follow it. It rounds to the even of
# the two, which is beyond, except for f8_e4m3fn: 448 is even there.
MIDDLE = {
    DType.F64: np.inf,
    DType.F32: 2.0**128 - 2.0**103,
    DType.F16: 65520.0,
    DType.BF16: float(np.array(0x7F7F8000, np.uint32).view(np.float32)),
    DType.F8_E3M4: 15.75,
    DType.F8_E4M3: 248.0,
    DType.F8_E4M3B11FNUZ: 31.0,
    DType.F8_E4M3FN: float(np.nextafter(np.float32(464), np.float32(465))),
    DType.F8_E4M3FNUZ: 248.0,
    DType.F8_E5M2: 61440.0,
    DType.F8_E5M2FNUZ: 61440.0,
}
QUIET_NANS = {
    DType.F64: (0x7FF8000000000000, 0xFFF8000000000000),
    DType.F32: (0x7FC00000, 0xFFC00000),
    DType.F16: (0x7E00, 0xFE00),
    DType.BF16: (0x7FC0, 0xFFC0),
    DType.F8_E3M4: (0x78, 0xF8),
    DType.F8_E4M3: (0x7C, 0xFC),
    DType.F8_E4M3FN: (0x7F, 0xFF),
    DType.F8_E5M2: (0x7E, 0xFE),
    DType.F8_E4M3B11FNUZ: (0x80, 0x80),
    DType.F8_E4M3FNUZ: (0x80, 0x80),
    DType.F8_E5M2FNUZ: (0x80, 0x80),
}


def bits_of(dtype: DType) -> np.dtype[Any]:
    return np.dtype(f"<u{dtype.itemsize}")


def _sample_f32() -> Array:
    """Every bf16 pattern with what is below its last bit, f16's values and middles, and at random."""
    below = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    around_bf16 = ((np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] | below).reshape(-1)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].astype(np.float32).view(np.uint32)
    near = np.array([-0x1001, -0x1000, -0xFFF, -1, 0, 1, 0xFFF, 0x1000, 0x1001]).astype(np.uint32)
    around_f16 = (halves[:, None] + near).reshape(-1)
    subnormal_f16 = (np.arange(0, 4096, dtype=np.float32) / 2**26).view(np.uint32)
    anything = RANDOM.integers(0, 1 << 32, 100_000, np.uint32)
    return np.concatenate([around_bf16, around_f16, subnormal_f16, subnormal_f16 | (1 << 31), anything])


def _sample_f64() -> Array:
    """Values of the f32 sample with what is below the last bit of an f32, and at random."""
    chosen = RANDOM.choice(_sample_f32(), 60_000)
    edges = np.array([0, 1, 0x7FFFFF, 0x7F7FFFFF, 0x7F800000, 0x7F7F8000, 0x477FF000, 0x43E80000], np.uint32)
    with np.errstate(invalid="ignore"):
        values = np.concatenate([chosen, edges]).view(np.float32).astype(np.float64).view(np.uint64)
    near = np.array([-(1 << 28), -1, 0, 1, (1 << 28) - 1, 1 << 28, (1 << 28) + 1]).astype(np.uint64)
    anything = RANDOM.integers(0, 1 << 64, 50_000, np.uint64)
    return np.concatenate([(values[:, None] + near).reshape(-1), anything])


SAMPLES = {
    dtype: np.arange(1 << 8 * dtype.itemsize, dtype=bits_of(dtype))
    for dtype in SOURCES
    if dtype.itemsize <= 2
} | {DType.F32: _sample_f32(), DType.F64: _sample_f64()}


def decode_f8(dtype: DType) -> Array:
    """Return the value of each of the 256 patterns of an f8 kind as float64, from its definition."""
    exponent_bits, mantissa_bits, bias = F8[dtype]
    pattern = np.arange(128)
    exponent, mantissa = pattern >> mantissa_bits, (pattern & ((1 << mantissa_bits) - 1)) / 2.0**mantissa_bits
    normal = (1 + mantissa) * 2.0 ** (exponent - bias)
    value = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), normal)
    if dtype is DType.F8_E4M3FN:
        value[-1] = np.nan
    elif dtype not in ONE_NAN:
        special = exponent == (1 << exponent_bits) - 1
        value[special] = np.where(mantissa[special] == 0, np.inf, np.nan)
    both = np.concatenate([value, -value])
    if dtype in ONE_NAN:
        both[128] = np.nan
    return both


def as_f64(bits: Array, source: DType) -> Array:
    """Return the exact values of a sample, by torch or by definition."""
    if source in F8:
        return decode_f8(source)[bits]
    return torch.from_numpy(bits).view(TORCH[source]).double().numpy()


def rounded_to_f32(values: Array) -> Array:
    return torch.from_numpy(values).float().double().numpy()


def is_lost(values: Array, target: DType) -> npt.NDArray[np.bool_]:
    """Return which exact values overflow in the target, by comparison with `MIDDLE`."""
    staged = rounded_to_f32(values) if target.itemsize <= 2 else values
    beyond = np.abs(staged) >= MIDDLE[target]
    return beyond & (np.isfinite(values) | (target in NO_INFINITY))


def cast(bits: Array, source: DType, target: DType) -> tuple[Array, int]:
    out, count = Caster(source, target).cast(memoryview(bits.tobytes()))
    return np.frombuffer(out, bits_of(target)), count


def pair_id(dtype: DType) -> str:
    return dtype.value


@pytest.mark.parametrize(("source", "target"), TORCH_PAIRS, ids=pair_id)
def test_finite_values_and_infinities_have_the_bits_of_torch(source: DType, target: DType) -> None:
    bits = SAMPLES[source]
    values = as_f64(bits, source)
    container = getattr(torch, f"uint{8 * target.itemsize}")
    expected = torch.from_numpy(bits).view(TORCH[source]).to(TORCH[target]).view(container).numpy()
    judged = ~np.isnan(values) & ~is_lost(values, target)
    assert judged.sum() > 100
    found, _ = cast(bits, source, target)
    np.testing.assert_array_equal(found[judged], expected[judged])


@pytest.mark.parametrize("target", F8, ids=pair_id)
@pytest.mark.parametrize("source", [DType.F64, DType.F32, DType.F16, DType.BF16, *F8], ids=pair_id)
def test_f8_gets_the_nearest_value_and_the_even_one_of_two(source: DType, target: DType) -> None:
    table = decode_f8(target)[:128]
    table = table[np.isfinite(table)]
    middles = (table[:-1] + table[1:]) / 2
    bits = SAMPLES[source]
    values = as_f64(bits, source)
    judged = np.isfinite(values) & ~is_lost(values, target)
    values = rounded_to_f32(values[judged])
    below, above = np.searchsorted(middles, np.abs(values)), np.searchsorted(middles, np.abs(values), "right")
    expected = np.where(below % 2 == 0, below, above)
    negative = np.signbit(values) & ((expected > 0) | (target not in ONE_NAN))
    found, _ = cast(bits, source, target)
    np.testing.assert_array_equal(found[judged], expected | np.where(negative, 0x80, 0))


@pytest.mark.parametrize("target", [DType.F16, DType.BF16, DType.F32, DType.F64], ids=pair_id)
@pytest.mark.parametrize("source", F8, ids=pair_id)
def test_f8_widens_to_its_value(source: DType, target: DType) -> None:
    expected = decode_f8(source)
    exact = np.isfinite(expected)
    found, count = cast(SAMPLES[source], source, target)
    values = as_f64(found, target)
    assert count == 0
    np.testing.assert_array_equal(values[exact].view(np.uint64), expected[exact].view(np.uint64))
    np.testing.assert_array_equal(np.isnan(values), np.isnan(expected))


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=pair_id)
def test_a_nan_becomes_the_quiet_nan_of_its_sign(source: DType, target: DType) -> None:
    bits = SAMPLES[source]
    if source.itemsize >= 4:
        payloads = np.array([1, 0x7F, 0x1000, 0x1FFF, 0x8000, 0x3FFFFF, 0x7FFFFF], bits.dtype)
        payloads |= np.array(np.inf, source.numpy).view(bits.dtype)
        bits = np.concatenate(
            [bits, payloads, payloads | payloads.dtype.type(1 << (8 * source.itemsize - 1))]
        )
    nan = np.isnan(as_f64(bits, source))
    signed = source is not DType.F8_E8M0FNU
    negative = (bits[nan] >> (8 * source.itemsize - 1) == 1) & signed
    found, _ = cast(bits, source, target)
    assert nan.any()
    positive_nan, negative_nan = QUIET_NANS[target]
    np.testing.assert_array_equal(
        found[nan], np.where(negative, bits_of(target).type(negative_nan), bits_of(target).type(positive_nan))
    )


@pytest.mark.parametrize(("source", "target"), [p for p in PAIRS if p[0].itemsize > 1], ids=pair_id)
def test_one_nan_alone_whose_payload_is_the_least(source: DType, target: DType) -> None:
    sign = 1 << (8 * source.itemsize - 1)
    pattern = int(np.array(np.inf, source.numpy).view(bits_of(source))) + 1
    for negative in (0, 1):
        bits = np.array([0, pattern | negative * sign], bits_of(source))
        found, count = cast(bits, source, target)
        assert (found.tolist(), count) == ([0, QUIET_NANS[target][negative]], 0)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=pair_id)
def test_overflow_is_counted_exactly_and_gives_an_infinity_or_nan(source: DType, target: DType) -> None:
    bits = SAMPLES[source]
    values = as_f64(bits, source)
    lost = is_lost(values, target)
    found, count = cast(bits, source, target)
    assert count == lost.sum()
    assert count_overflow(source, target, memoryview(bits.tobytes())) == count
    if source.itemsize <= 2:
        assert can_overflow(source, target) == lost.any()
    decoded = as_f64(found, target)
    if target in NO_INFINITY:
        assert np.isnan(decoded[lost]).all()
    else:
        np.testing.assert_array_equal(decoded[lost], np.copysign(np.inf, values[lost]))
    np.testing.assert_array_equal(np.isnan(decoded), np.isnan(values) | (lost & (target in NO_INFINITY)))


@pytest.mark.parametrize(
    ("source", "target", "last", "first"),
    [
        (DType.F32, DType.BF16, 0x7F7F7FFF, 0x7F7F8000),
        (DType.F32, DType.F16, 0x477FEFFF, 0x477FF000),  # 65520
        (DType.F32, DType.F8_E4M3FN, 0x43E80000, 0x43E80001),  # 464
        (DType.F32, DType.F8_E5M2, 0x476FFFFF, 0x47700000),  # 61440
        (DType.F64, DType.F32, 0x47EFFFFFEFFFFFFF, 0x47EFFFFFF0000000),
    ],
)
def test_the_first_value_that_overflows(source: DType, target: DType, last: int, first: int) -> None:
    sign = 1 << (8 * source.itemsize - 1)
    for pattern, lost in [(last, 0), (first, 1), (last | sign, 0), (first | sign, 1)]:
        data = memoryview(np.array([0, pattern, sign], bits_of(source)).tobytes())
        assert Caster(source, target).cast(data)[1] == lost
        assert count_overflow(source, target, data) == lost


def test_what_can_overflow() -> None:
    assert can_overflow(DType.F32, DType.BF16)
    assert can_overflow(DType.F64, DType.F32)
    assert not can_overflow(DType.BF16, DType.F32)
    assert not can_overflow(DType.F32, DType.F64)
    # Finite values of e5m2 fit, but an infinity does not.
    assert can_overflow(DType.F8_E5M2, DType.F8_E5M2FNUZ)
    infinities = memoryview(b"\x7c\xfc\x00")
    assert count_overflow(DType.F8_E5M2, DType.F8_E5M2FNUZ, infinities) == 2


@pytest.mark.parametrize(
    "stem", ["llmc_gpt2/gpt2_L2H2C32V97T16", "llmc_llama3/llama3_L4H4KV2C16V96T16_masterlayout"]
)
def test_real_weights_as_llmc_rounds_them(stem: str) -> None:
    """llm.c exports one model in both types; behind 1024 bytes of header the elements correspond."""
    weights = golden(f"{stem}_fp32.bin").read_bytes()[1024:]
    out, count = Caster(DType.F32, DType.BF16).cast(memoryview(weights))
    assert bytes(out) == golden(f"{stem}_bf16.bin").read_bytes()[1024:]
    assert count == 0


def test_bf16_that_f16_cannot_hold() -> None:
    bits = torch.tensor([1e5, 1e-8, float("nan"), float("-inf")], dtype=torch.bfloat16).view(torch.uint16)
    found, count = cast(bits.numpy(), DType.BF16, DType.F16)
    assert found.tolist() == [0x7C00, 0x0000, 0x7E00, 0xFC00]
    assert count == 1


@pytest.mark.parametrize("target", TARGETS, ids=pair_id)
def test_minus_zero(target: DType) -> None:
    sign = 1 << (8 * target.itemsize - 1)
    for source in (DType.F64, DType.F32, DType.BF16, DType.F8_E5M2):
        zeros = np.array([0, 1 << (8 * source.itemsize - 1)], bits_of(source))
        assert cast(zeros, source, target)[0].tolist() == [0, 0 if target in ONE_NAN else sign]


@pytest.mark.parametrize("source", [DType.F32, DType.F16, DType.F8_E5M2], ids=pair_id)
def test_a_long_chunk_is_right_at_every_place(source: DType) -> None:
    """Plain values, and here and there what needs care; the count is over all of it."""
    size = 200_003
    bits = np.ones(size, source.numpy).view(bits_of(source))
    nan, infinity, most = {
        DType.F32: (0xFF800001, 0xFF800000, 0x7F7FFFFF),
        DType.F16: (0xFC01, 0xFC00, 0x7BFF),
        DType.F8_E5M2: (0xFD, 0xFC, 0x7B),
    }[source]
    bits[[0, 65535, 131072, size - 1]] = nan
    bits[[1, 65536, size - 2]] = infinity
    bits[[2, 65537, 131071, size - 3]] = most
    found, count = cast(bits, source, DType.F8_E4M3FN)
    expected = np.full(size, 0x38, np.uint8)
    expected[[0, 65535, 131072, size - 1, 1, 65536, size - 2]] = 0xFF
    expected[[2, 65537, 131071, size - 3]] = 0x7F
    np.testing.assert_array_equal(found, expected)
    assert count == 7


def test_what_was_returned_outlives_the_next_call() -> None:
    caster = Caster(DType.F32, DType.BF16)
    first, _ = caster.cast(np.full(1000, 1.0, "<f4").view(np.uint8).data)
    second, _ = caster.cast(np.full(1000, 2.0, "<f4").view(np.uint8).data)
    assert bytes(first) == b"\x80\x3f" * 1000
    assert bytes(second) == b"\x00\x40" * 1000
    assert first.format == "B"
    assert len(first) == 2000


@pytest.mark.parametrize(("source", "target"), [(DType.F32, DType.BF16), (DType.F8_E5M2, DType.F32)])
def test_an_empty_chunk(source: DType, target: DType) -> None:
    out, count = Caster(source, target).cast(memoryview(b""))
    assert (bytes(out), count, count_overflow(source, target, memoryview(b""))) == (b"", 0, 0)


@pytest.mark.parametrize("source", [DType.F64, DType.F32, DType.BF16], ids=pair_id)
def test_a_chunk_at_an_odd_address(source: DType) -> None:
    target = DType.F16
    plain = SAMPLES[source][:1000]
    odd = memoryview(b"x" + plain.tobytes())[1:]
    expected, expected_count = cast(plain, source, target)
    out, count = Caster(source, target).cast(odd)
    assert bytes(out) == expected.tobytes()
    assert (count, count_overflow(source, target, odd)) == (expected_count, expected_count)


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype not in TARGETS], ids=pair_id)
def test_no_target_but_floats_that_hold_values(dtype: DType) -> None:
    with pytest.raises(OptionError, match=dtype.value):
        check_target(dtype)
    with pytest.raises(OptionError, match=dtype.value):
        Caster(DType.F32, dtype)
    with pytest.raises(OptionError, match=dtype.value):
        count_overflow(DType.F32, dtype, memoryview(b""))


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype not in SOURCES], ids=pair_id)
def test_no_source_but_floats(dtype: DType) -> None:
    with pytest.raises(OptionError, match=dtype.value):
        Caster(dtype, DType.F32)


@pytest.mark.parametrize("dtype", TARGETS, ids=pair_id)
def test_every_other_float_is_a_target(dtype: DType) -> None:
    check_target(dtype)


def test_a_big_endian_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(UnsupportedError, match="little-endian"):
        Caster(DType.F32, DType.BF16)
