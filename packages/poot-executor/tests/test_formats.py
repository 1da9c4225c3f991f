"""Weight formats: decoding against a scalar decoder written from the block structures."""

import struct

import numpy as np
import pytest

from poot_executor.dtype import F32
from poot_executor.errors import Unsupported
from poot_executor.formats import FORMATS, format_named

PACKED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def half(raw, at):
    return struct.unpack_from("<e", raw, at)[0]


def decode_block(name, raw):
    """The 32 values of one block, one at a time, in float64 (exact but for the last rounding)."""
    d = half(raw, 0)
    minimum = half(raw, 2) if name.endswith("_1") else 0.0
    if name == "q8_0":
        return [d * q for q in struct.unpack_from("<32b", raw, 2)]
    at = 4 if name.endswith("_1") else 2
    high = 0
    if name.startswith("q5"):
        (high,) = struct.unpack_from("<I", raw, at)
        at += 4
    values = []
    for column in range(32):
        byte = raw[at + column % 16]
        q = byte & 15 if column < 16 else byte >> 4
        q |= ((high >> column) & 1) << 4
        zero = {"q4_0": 8, "q5_0": 16}.get(name, 0)
        values.append(d * (q - zero) + minimum)
    return values


@pytest.mark.parametrize("name", PACKED)
def test_decoding_equals_a_scalar_decoder(name):
    format = FORMATS[name]
    rng = np.random.default_rng(17)
    rows, blocks = 5, 7
    raw = rng.integers(0, 256, (rows, blocks, format.nbytes), np.uint8)
    heads = 2 if name.endswith("_1") else 1
    scales = rng.standard_normal((rows, blocks, heads)).astype("<f2")
    raw[..., : 2 * heads] = scales.view(np.uint8).reshape(rows, blocks, -1)
    decoded = format.decode(raw.reshape(rows, -1))
    assert decoded.dtype == np.float32 and decoded.shape == (rows, blocks * 32)
    expected = np.array(
        [[decode_block(name, raw[r, b].tobytes()) for b in range(blocks)] for r in range(rows)]
    ).reshape(rows, -1)
    if name.endswith("_1"):  # d·q is rounded, then the sum: one rounding of each
        product = np.abs(expected) + 40
        assert (np.abs(decoded - expected) <= product * 2.0**-23).all()
    else:
        np.testing.assert_array_equal(decoded, expected.astype(np.float32))


@pytest.mark.parametrize("name", PACKED)
def test_extreme_quants(name):
    """All bits clear and all bits set, with scale 1 and minimum 0."""
    format = FORMATS[name]
    for fill, values in (
        (0x00, {"q4_0": -8, "q5_0": -16}),
        (0xFF, {"q4_0": 7, "q4_1": 15, "q5_0": 15, "q5_1": 31, "q8_0": -1}),
    ):
        raw = np.full(format.nbytes, fill, np.uint8)
        raw[: 4 if name.endswith("_1") else 2] = 0
        raw[:2] = np.frombuffer(struct.pack("<e", 1.0), np.uint8)
        assert (format.decode(raw) == values.get(name, 0)).all()


def test_dense_formats_decode_exactly():
    values = np.array([[0.0, -1.5, 65504.0, 2.0**-24]], np.float32)
    np.testing.assert_array_equal(FORMATS["f32"].decode(values.view(np.uint8)), values)
    np.testing.assert_array_equal(FORMATS["f16"].decode(values.astype("<f2").view(np.uint8)), values)
    bf16 = (values.view("<u4") >> 16).astype("<u2")
    expected = (bf16.astype("<u4") << 16).view("<f4")
    np.testing.assert_array_equal(FORMATS["bf16"].decode(bf16.view(np.uint8)), expected)
    assert FORMATS["f32"].dtype is F32 and not FORMATS["f32"].is_packed


@pytest.mark.parametrize("name", PACKED)
def test_fields_fill_a_block_without_gaps(name):
    format = FORMATS[name]
    assert format.is_packed
    at = 0
    for field in format.fields:
        assert (field.offset, field.offset % 2, field.nbytes % 2) == (at, 0, 0)
        at += field.nbytes
    assert at == format.nbytes


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [("f32", 256), ("bf16", 128), ("q4_0", 36), ("q4_1", 40), ("q5_0", 44), ("q8_0", 68)],
)
def test_row_bytes(name, nbytes):
    assert FORMATS[name].row_bytes(64) == nbytes


def test_a_row_of_broken_blocks_is_refused_with_the_numbers():
    with pytest.raises(Unsupported, match=r"format q4_0: a row of 65 columns .* blocks of 32"):
        FORMATS["q4_0"].row_bytes(65)


def test_an_unknown_format_is_refused_with_the_known_ones():
    with pytest.raises(Unsupported, match="weight format q3_k: poot decodes f32, f16, bf16"):
        format_named("q3_k")
    assert format_named("q8_0") is FORMATS["q8_0"]
