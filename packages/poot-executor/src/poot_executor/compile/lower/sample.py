"""Random bits and the sampled draw: kernels of the library over the graph's expressions."""

from __future__ import annotations

from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.draft import Draft, grid
from poot_executor.compile.lower.hooks import Hooks
from poot_executor.compile.lower.parts import row_parts
from poot_executor.compile.lower.rows import row_threads
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps
from poot_executor.errors import Unsupported
from poot_executor.kernels.draw_parts import draw_parts
from poot_executor.kernels.random_bits import random_bits
from poot_executor.kernels.sample_token import VOCABULARY_MOST, sample_token


def lower_random(scene: Scene, region: Region, caps: Caps) -> Draft:
    """root[row, id] from seed and position."""
    anchor = region.anchor
    assert anchor is not None
    hooks = Hooks(Scene(scene.graph, scene.stored - {region.root}, scene.layouts))
    rows, columns = region.root.shape
    groups = grid(-(-rows * columns // caps.group_threads), caps)
    kernel = random_bits.specialize(
        group_size=caps.group_threads, seed=hooks.read(anchor.inputs[0]), position=hooks.read(anchor.inputs[1]),
        store=hooks.store(region.root), rows=rows, columns=columns, across=groups[0],
    )  # fmt: skip
    return hooks.draft(kernel, caps, groups, threads=caps.group_threads)


def lower_sample(scene: Scene, region: Region, caps: Caps) -> list[Draft]:
    """root[row] = the drawn id. Where rows leave much of the target idle, rows that filter nothing, whose noise is the
    dear part, are drawn by many groups first, each over a part of the ids.
    """
    anchor = region.anchor
    assert anchor is not None
    logits, seed, position, settings, top_k = anchor.inputs
    rows, count = logits.shape
    if count > VOCABULARY_MOST or rows > caps.max_groups[0]:
        raise Unsupported(
            f"sample_token of {logits.type}",
            f"rows and ids are bounded by {caps.max_groups[0]:,} and {VOCABULARY_MOST:,}",
        )
    inner = Scene(scene.graph, scene.stored - {region.root}, scene.layouts)
    threads = row_threads(count, caps)
    parts = row_parts(rows, count, caps)
    drafts = []
    if parts:
        few = caps.group_threads
        hooks = Hooks(inner)
        kernel = draw_parts.specialize(
            group_size=few, quad=hooks.quad(logits), seed=hooks.read(seed), position=hooks.read(position),
            setting=hooks.read(settings), top_k=hooks.read(top_k), best_of=hooks.scratch(0, (rows, parts)),
            place_of=hooks.scratch(1, (rows, parts)), count=count, parts=parts,
        )  # fmt: skip
        drafts.append(hooks.draft(kernel, caps, (rows, parts, 1), threads=few, parts=parts))
    hooks = Hooks(inner)
    # Operands are in the order in which hooks are made: that of the kernel's parameters.
    kernel = sample_token.specialize(
        group_size=threads, quad=hooks.quad(logits), seed=hooks.read(seed), position=hooks.read(position),
        setting=hooks.read(settings), top_k=hooks.read(top_k), store=hooks.store(region.root),
        drawn=tuple(hooks.scratch(i, (rows, parts)) for i in range(2 if parts else 0)), count=count, parts=parts,
    )  # fmt: skip
    drafts.append(hooks.draft(kernel, caps, (rows, 1, 1), threads=threads))
    return drafts
