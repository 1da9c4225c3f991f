"""Device layouts: words taken back to stored rows by the documented formula, for every format."""

import itertools

import numpy as np
import pytest

from poot_executor.errors import Unsupported
from poot_executor.formats import FORMATS
from poot_executor.layout import layout_for


def stored_rows(format, rows, blocks, seed=23):
    """Random stored rows whose f16 and float fields are finite, so that decoded values compare."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, blocks, format.nbytes), np.uint8)
    if format.dtype is None:
        heads = 2 if format.name.endswith("_1") else 1
        scales = rng.standard_normal((rows, blocks, heads)).astype("<f2")
        raw[..., : 2 * heads] = scales.view(np.uint8).reshape(rows, blocks, -1)
    else:
        raw[..., -1] &= 0x3F  # an exponent that is no infinity or NaN
    return raw.reshape(rows, -1)


def word(layout, words, row, plane, w):
    """Word w of a row in a plane: the module docstring's formula, within the row's part."""
    (part,) = (p for p in layout.parts if p.first <= row < p.first + p.rows)
    tile = layout.tile_rows
    padded = -(-part.rows // tile) * tile
    r = row - part.first
    vector, w = plane.vector, plane.ordered(w)
    at = part.offset // 4 + plane.start * padded
    at += ((r // tile) * plane.words + w // vector * vector) * tile
    return int(words[at + r % tile * vector + w % vector])


def unpacked_row(layout, words, row):
    """A stored row from its device words: each field of each block put back in its place."""
    raw = bytearray(layout.blocks * layout.format.nbytes)
    for plane in layout.planes:
        for block in range(layout.blocks):
            at = block * layout.format.nbytes + plane.field_offset
            if plane.field_bytes == 2:
                pair = word(layout, words, row, plane, block // 2)
                raw[at : at + 2] = (pair >> 16 * (block % 2) & 0xFFFF).to_bytes(2, "little")
                continue
            for j in range(plane.field_bytes // 4):
                value = word(layout, words, row, plane, block * (plane.field_bytes // 4) + j)
                raw[at + 4 * j : at + 4 * j + 4] = value.to_bytes(4, "little")
    return bytes(raw)


@pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))
@pytest.mark.parametrize("tile_rows", [1, 4, 8, 32])
def test_device_words_decode_to_the_stored_rows(format, tile_rows):
    # Odd and even block counts; rows that fill tiles, and rows that do not; whole and in parts.
    for blocks, rows, tiles in itertools.product((1, 2, 3, 8), (1, 4, 7, 33), (None, 1, 2)):
        columns = blocks * format.columns
        probe = layout_for(format, (rows, columns), tile_rows=tile_rows, max_bytes=None, alignment=256)
        tile_bytes = probe.row_words * 4 * tile_rows
        max_bytes = None if tiles is None else tile_bytes * tiles + 4
        layout = layout_for(format, (rows, columns), tile_rows=tile_rows, max_bytes=max_bytes, alignment=256)
        raw = stored_rows(format, rows, blocks)
        words = layout.reorder(raw)
        assert words.nbytes == layout.nbytes
        back = np.frombuffer(b"".join(unpacked_row(layout, words, row) for row in range(rows)), np.uint8).reshape(
            rows, -1
        )
        np.testing.assert_array_equal(back, raw)
        np.testing.assert_array_equal(format.decode(back), format.decode(raw))


@pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))
def test_parts_cover_the_rows_within_the_limit_at_aligned_offsets(format):
    rows, columns, limit = 100, 3 * format.columns, 2500
    layout = layout_for(format, (rows, columns), tile_rows=4, max_bytes=limit, alignment=256)
    first = end = 0
    for part in layout.parts:
        assert part.first == first and part.first % 4 == 0
        assert part.offset >= end and part.offset % 256 == 0
        assert part.nbytes <= limit
        assert part.nbytes == layout.padded(part.rows) * layout.row_words * 4
        first, end = part.first + part.rows, part.offset + part.nbytes
    assert first == rows and layout.nbytes == end
    assert len(layout.parts) > 1 or format.nbytes * 3 * rows <= limit


@pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))
def test_planes_take_the_stored_bytes_and_at_most_a_halfword_each_more(format):
    for blocks in (1, 2, 5, 6):
        columns = blocks * format.columns
        layout = layout_for(format, (3, columns), tile_rows=1, max_bytes=None, alignment=16)
        stored = blocks * format.nbytes
        assert stored <= layout.row_words * 4 <= stored + 2 * len(layout.planes)
        starts = [plane.start for plane in layout.planes]
        assert starts == list(itertools.accumulate([0, *(p.words for p in layout.planes[:-1])]))


def test_padding_is_zero():
    format = FORMATS["f16"]
    layout = layout_for(format, (3, 5), tile_rows=4, max_bytes=None, alignment=16)
    words = layout.reorder(np.full((3, 10), 0xFF, np.uint8)).reshape(3, 4)  # [word][row of a tile]
    assert (words[:, 3] == 0).all()
    assert (words[2, :3] == 0xFFFF).all()  # five halves: the last word holds one


def test_leading_axes_are_rows_and_vectors_are_plain():
    format = FORMATS["f32"]
    experts = layout_for(format, (2, 3, 8), tile_rows=4, max_bytes=None, alignment=16)
    assert (experts.rows, experts.columns, experts.tile_rows) == (6, 8, 4)
    vector = layout_for(format, (8,), tile_rows=4, max_bytes=None, alignment=16)
    assert (vector.rows, vector.columns, vector.tile_rows) == (1, 8, 1)
    scalar = layout_for(format, (), tile_rows=4, max_bytes=None, alignment=16)
    assert (scalar.rows, scalar.columns) == (1, 1)
    assert layout_for(format, (8,), tile_rows=1, max_bytes=None, alignment=16) == vector


def test_equal_arguments_give_equal_layouts():
    """Entries of one executable share a weight because the layout depends on nothing else."""
    args = {"tile_rows": 8, "max_bytes": 4096, "alignment": 256}
    first = layout_for(FORMATS["q4_1"], (64, 64), **args)
    second = layout_for(FORMATS["q4_1"], (64, 64), **args)
    assert first == second and hash(first) == hash(second)


def test_a_tile_over_the_binding_limit_is_refused_with_both_numbers():
    with pytest.raises(Unsupported, match=r"weight f32\[8, 64\]: 8 rows take 2,048 .*2,000"):
        layout_for(FORMATS["f32"], (8, 64), tile_rows=8, max_bytes=2000, alignment=16)


def test_a_row_of_broken_blocks_is_refused():
    with pytest.raises(Unsupported, match="whole blocks of 32"):
        layout_for(FORMATS["q4_0"], (8, 33), tile_rows=1, max_bytes=None, alignment=16)


def test_planes_by_name():
    layout = layout_for(FORMATS["q5_1"], (4, 64), tile_rows=1, max_bytes=None, alignment=16)
    assert [p.name for p in layout.planes] == ["quants", "high", "scale_minimum"]
    assert layout.plane("high").words == 2


@pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))
@pytest.mark.parametrize("tile_rows", [1, 8])
def test_wide_loads_are_aligned_and_in_one_piece(format, tile_rows):
    """A vector of four words lies at a multiple of 16 bytes, in every row of every part."""
    layout = layout_for(format, (20, 4 * format.columns), tile_rows=tile_rows, max_bytes=4096, alignment=16)
    for plane in layout.planes:
        assert plane.vector in (1, 4) and plane.words % plane.vector == 0
        for part in layout.parts:
            padded = layout.padded(part.rows)
            for row in range(part.rows):
                at = [plane.place(row, w, tile_rows, padded) for w in range(plane.words)]
                for first in at[:: plane.vector]:
                    assert (part.offset // 4 + first) % plane.vector == 0
                assert all(b - a == 1 for i, (a, b) in enumerate(itertools.pairwise(at)) if (i + 1) % plane.vector)


def test_quants_are_read_as_vectors():
    for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):
        layout = layout_for(FORMATS[name], (4, 96), tile_rows=8, max_bytes=None, alignment=16)
        assert layout.plane("quants").vector == 4 and layout.planes[0].name == "quants"


@pytest.mark.parametrize("tile_rows", [1, 4])
def test_every_word_of_a_part_has_a_place_of_its_own(tile_rows):
    for format in FORMATS.values():
        layout = layout_for(format, (7, 3 * format.columns), tile_rows=tile_rows, max_bytes=None, alignment=16)
        padded = layout.padded(7)
        places = [
            plane.place(row, word, tile_rows, padded)
            for plane in layout.planes
            for row in range(padded)
            for word in range(plane.words)
        ]
        assert sorted(places) == list(range(layout.nbytes // 4))


@pytest.mark.parametrize("format", [f for f in FORMATS.values() if f.is_packed], ids=lambda f: f.name)
def test_quants_in_the_order_of_fragments_decode_to_the_stored_rows(format):
    for blocks, rows in itertools.product((2, 3, 4, 8, 12), (1, 5)):
        columns = blocks * format.columns
        layout = layout_for(format, (rows, columns), tile_rows=1, max_bytes=None, alignment=256, fragments=True)
        stored = stored_rows(format, rows, blocks)
        words = layout.reorder(stored)
        for row in range(rows):
            assert unpacked_row(layout, words, row) == stored[row].tobytes()
        quants = layout.plane("quants")
        places = [quants.ordered(w) for w in range(quants.words)]
        assert sorted(places) == list(range(quants.words))
        assert [quants.word_at(place) for place in places] == list(range(quants.words))
        # A lane's words of neighbouring blocks are one vector.
        if quants.run:
            lane = [block * 4 * quants.run + i for block in range(4 // quants.run) for i in range(quants.run)]
            assert [quants.ordered(w) for w in lane] == [0, 1, 2, 3]
