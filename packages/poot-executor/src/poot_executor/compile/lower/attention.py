"""Flash attention: scores, softmax and weighted values in one pass over the positions, nothing of their size ever
stored.

A group takes up to `queries` rows that read the same K and V (all query heads of a KV head, and in prefill several
tokens) and walks the positions a tile at a time: a thread a position for the scores, a thread a column for the values,
the running maximum and sum rescaling what was gathered so far (Milakov and Gimelshein 2018; Dao et al. 2022). The grid
is one for every position of a step, and a tile that no row of the group sees is passed over, by the graph's own mask.
Where rows and heads cannot fill the device, `splits` groups share the
positions and a second kernel combines what they gathered.
"""

from __future__ import annotations

from math import prod

from poot_executor.compile.attention import bindings
from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.attention_combine import combine_splits
from poot_executor.compile.lower.attention_fragments import FragmentAttentionKernel, halves_of
from poot_executor.compile.lower.attention_kernel import AttentionKernel
from poot_executor.compile.lower.attention_subgroups import SubgroupKernel
from poot_executor.compile.lower.draft import Draft, Frame
from poot_executor.compile.mask_bounds import MaskBounds, mask_bounds
from poot_executor.compile.region import Attention, Region
from poot_executor.compile.schedule import attention_schedule, batch_invariant, by_subgroups
from poot_executor.compile.schedule_attention import FragmentAttention, fragment_attention
from poot_executor.compile.target import Caps


def lower_attention(scene: Scene, region: Region, caps: Caps) -> list[Draft]:
    """root[…, m, d] = Σₙ softmaxₙ(x[…, m, n]) · v[…, n, d], then the epilogue."""
    attention, root = region.attention, region.root
    assert attention is not None
    *lead, rows, columns = attention.out.output.shape
    span, depth = attention.out.inputs[1].shape[-2], attention.scores.inputs[0].shape[-1]
    # Groups that share a row bind three buffers more, for what each gathered.
    splits = bindings(scene, attention) + 3 <= caps.max_bindings
    stored = scene.stored - {root, attention.out.output}
    inner = Scene(scene.graph, stored, scene.layouts)
    half = halves_of(scene.graph, attention)
    chosen = fragment_attention(rows, prod(lead), span, depth, columns, half, caps, splits=splits)
    if chosen is not None:
        return _by_fragments(inner, region, caps, chosen)
    schedule = attention_schedule(rows, prod(lead), span, depth, columns, caps if splits else batch_invariant(caps))
    assert schedule is not None, "the matcher sees to that"
    frame = Frame(inner, caps, region.kind, schedule.threads)
    made = SubgroupKernel if by_subgroups(schedule, columns, caps) else AttentionKernel
    kernel = made(frame, attention, tuple(lead), schedule, _bounds_in(inner, attention))
    groups = (-(-rows // schedule.queries), prod(lead), schedule.splits)
    kernel.emit(root)
    apart = made is SubgroupKernel
    drafts = [frame.draft(groups, frame.nbytes(), **schedule.describe(), span=span, subgroups=apart)]
    if schedule.splits > 1:
        drafts.append(combine_splits(inner, region, caps, schedule.splits))
    return drafts


def _bounds(scene: Scene, attention: Attention) -> MaskBounds:
    """What the mask compares positions with."""
    return mask_bounds(scene.graph, attention.mask) if attention.mask is not None else MaskBounds((), whole=True)


def _bounds_in(scene: Scene, attention: Attention) -> MaskBounds:
    """Likewise, where the kernel computes it; of a mask that is stored it knows nothing."""
    bounds = _bounds(scene, attention)
    return MaskBounds((), whole=False) if bounds.inner & scene.stored else bounds


def _by_fragments(scene: Scene, region: Region, caps: Caps, schedule: FragmentAttention) -> list[Draft]:
    attention = region.attention
    assert attention is not None
    *lead, rows, _ = attention.out.output.shape
    bounds = _bounds(scene, attention)
    if bounds.whole:
        # Its rows' ends are all that the mask says: it is not read, even where it is stored for others.
        scene = Scene(scene.graph, scene.stored - bounds.inner, scene.layouts)
    else:
        bounds = _bounds_in(scene, attention)
    frame = Frame(scene, caps, region.kind, schedule.threads)
    FragmentAttentionKernel(frame, attention, tuple(lead), schedule, bounds).emit(region.root)
    groups = (prod(lead), -(-rows // schedule.rows), schedule.splits)
    span = attention.out.inputs[1].shape[-2]
    drafts = [frame.draft(groups, frame.nbytes(), **schedule.describe(), span=span)]
    if schedule.splits > 1:
        drafts.append(combine_splits(scene, region, caps, schedule.splits))
    return drafts
