"""What is done to logits before a token is drawn: bias, penalties, mask. Every row by its own values.

Bias and penalties touch few ids of a row, so they are gathered, changed and scattered back: no work over the whole
vocabulary. An id outside the vocabulary changes nothing.
"""

from __future__ import annotations

from poot_executor.dtype import F32, I32, U32
from poot_executor.graph import primitives as p
from poot_executor.graph.traced import Traced
from poot_llm.sampling.keys import NO_ID


def biased(logits: Traced, ids: Traced, values: Traced) -> Traced:
    """logits[row, ids[row, i]] + values[row, i], of f32[rows, vocabulary], i32[rows, n] and f32[rows, n]; an id
    occurs at most once in a row.
    """
    places = _places(logits, ids)
    return _put(logits, places, _at(logits, places) + values)


def penalized(logits: Traced, penalties: Traced, ids: Traced, counts: Traced, under_way: Traced) -> Traced:
    """Repetition, presence and frequency penalties, f32[rows, 3], on f32[rows, vocabulary].

    `ids` and `counts` i32[rows, n] are the distinct ids of a row's prompt and answer with their number in the answer;
    `under_way` i32[rows] is one more token of the answer, NO_ID for none.

    A logit l of any such id becomes l / repetition where l > 0 and l · repetition elsewhere; of ids in the answer,
    presence + frequency · count is then taken off.
    """
    rows, n = ids.shape
    one = p.reshape(under_way, (rows, 1))
    # A difference and not an equality of two: devices that compare in float32 tell any number from 0.
    here = p.cast((ids - one) == 0, I32)
    # An entry of its own, unless the row has one already: places must differ.
    known = p.reshape(p.reduce_max(here, 1), (rows, 1)) > 0
    counts = p.concat([counts + here, p.cast(one >= 0, I32)], 1)
    ids = p.concat([ids, p.select(known, ids.builder.splat(NO_ID, one.type), one)], 1)
    n += 1
    repetition, presence, frequency = (p.slice_(penalties, (0, i), (rows, i + 1)) for i in range(3))
    places = _places(logits, ids)
    before = _at(logits, places)
    repetition = p.broadcast(repetition, (rows, n))
    repeated = p.select(before > 0.0, before / repetition, before * repetition)
    count = p.cast(counts, F32)
    once = p.minimum(count, count.builder.splat(1.0, count.type))
    return _put(logits, places, repeated - (once * presence + count * frequency))


def masked(logits: Traced, mask: Traced) -> Traced:
    """-inf where bit (id mod 32) of mask[row, id div 32] is 0: f32[rows, vocabulary], u32[rows, words]."""
    builder = logits.builder
    rows, vocabulary = logits.shape
    words = mask.shape[1]
    # 32 shifts and no shift of each id's word, which is what is dear where a device shifts one number at a time.
    place = p.iota(builder, (1, 1, 32), 2, U32)
    bit = p.broadcast(builder.splat(1, place.type) << place, (rows, words, 32))
    word = p.broadcast(p.reshape(mask, (rows, words, 1)), (rows, words, 32))
    bits = p.reshape(word & bit, (rows, words * 32))
    allowed = p.slice_(bits, (0, 0), (rows, vocabulary)) != 0
    return p.select(allowed, logits, builder.splat(float("-inf"), logits.type))


def _places(logits: Traced, ids: Traced) -> Traced:
    """Row-major places of ids i32[rows, n] in logits, -1 for what is no id -> i32[rows · n]."""
    rows, vocabulary = logits.shape
    places = p.iota(ids.builder, ids.shape, 0, I32) * vocabulary + ids
    known = (ids >= 0) & (ids < vocabulary)
    return p.reshape(p.select(known, places, ids.builder.splat(-1, ids.type)), (rows * ids.shape[1],))


def _at(logits: Traced, places: Traced) -> Traced:
    """The logits at row-major places, f32[rows, n]; those of place -1 mean nothing."""
    rows, vocabulary = logits.shape
    inside = p.maximum(places, places.builder.splat(0, places.type))
    found = p.gather(p.reshape(logits, (rows * vocabulary,)), inside)
    return p.reshape(found, (rows, places.shape[0] // rows))


def _put(logits: Traced, places: Traced, values: Traced) -> Traced:
    """Logits with values f32[rows, n] at places that are not negative."""
    rows, vocabulary = logits.shape
    flat = p.reshape(logits, (rows * vocabulary,))
    return p.reshape(p.scatter_update(flat, places, p.reshape(values, places.shape)), (rows, vocabulary))
