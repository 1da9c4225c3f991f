"""The template of each kind of region."""

from __future__ import annotations

from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.attention import lower_attention
from poot_executor.compile.lower.batched import lower_batched
from poot_executor.compile.lower.draft import Draft
from poot_executor.compile.lower.experts import lower_experts
from poot_executor.compile.lower.fragments import lower_fragments
from poot_executor.compile.lower.pointwise import lower_pointwise
from poot_executor.compile.lower.projection import lower_projection
from poot_executor.compile.lower.rows import lower_rows
from poot_executor.compile.lower.sample import lower_random, lower_sample
from poot_executor.compile.lower.scatter import lower_scatter
from poot_executor.compile.lower.select import lower_argmax, lower_top_k
from poot_executor.compile.lower.tile import lower_tile
from poot_executor.compile.lower.warpgroups import lower_warpgroups
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps
from poot_executor.errors import Unsupported
from poot_executor.graph.show import show_equation

TEMPLATES = {
    "pointwise": lower_pointwise,
    "gather": lower_pointwise,
    "row_reduction": lower_rows,
    "batched_contraction": lower_batched,
    "indexed_contraction": lower_batched,
    "scatter": lower_scatter,
    "update_slice": lower_scatter,
    "argmax": lower_argmax,
    "top_k": lower_top_k,
    "random_bits": lower_random,
    "sample": lower_sample,
}


def lower_region(scene: Scene, region: Region, caps: Caps) -> list[Draft]:
    """The dispatches of a region, in order. Raises Unsupported naming the equation that it ends in and what is
    missing."""
    try:
        if region.attention is not None:
            return lower_attention(scene, region, caps)
        if region.projection is not None and region.kind == "indexed_contraction":
            return lower_experts(scene, region, caps)
        if region.projection is not None:
            for lower in (lower_warpgroups, lower_fragments, lower_tile):
                special = lower(scene, region, caps)
                if special is not None:
                    return special
            return lower_projection(scene, region, caps)
        made = TEMPLATES[region.kind](scene, region, caps)
        return made if isinstance(made, list) else [made]
    except Unsupported as refusal:
        equation = scene.graph.equation(region.root)
        assert equation is not None
        raise Unsupported(f"{show_equation(equation)}: {refusal.what}", refusal.missing) from refusal
