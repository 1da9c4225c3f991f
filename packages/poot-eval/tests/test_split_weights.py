"""Weights over the binding limit are split, and nothing else changes: tried with a limit of some KiB."""

from dataclasses import replace

import pytest

from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.device import PLAIN_CAPS, SUBGROUP_CAPS, ReferenceDevice
from poot_executor.errors import Unsupported
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p


@pytest.mark.parametrize("caps", [PLAIN_CAPS, SUBGROUP_CAPS], ids=["plain", "subgroups"])
@pytest.mark.parametrize("name", ["f32", "bf16", "q4_1", "q8_0"])
def test_a_split_weight_is_contracted_and_gathered(rng, name, caps):
    format = FORMATS[name]
    g = Recorder("split", rng)
    table = g.weight(format, 150, 64)
    g.output(f.linear(g.floats(3, 64), table, format))
    g.output(p.argmax(f.linear(g.floats(1, 64), table, format), 1))
    g.output(f.embedding(table, format, g.indices((9,), 150)))
    with ReferenceDevice(replace(caps, max_binding_bytes=4096)) as device:
        match = assert_device_matches(device, g.builder.build(), g.given(), undecided=0.01)
        (use,) = match.program.weights
        assert len(use.layout.parts) > 1
        assert all(part.nbytes <= 4096 for part in use.layout.parts)


def test_an_activation_over_the_limit_is_refused_by_name(rng):
    g = Recorder("wide", rng)
    g.output(f.softmax(g.floats(8, 600)))
    device = ReferenceDevice(replace(PLAIN_CAPS, max_binding_bytes=4096))
    with device, pytest.raises(Unsupported, match=r"f32\[8, 600\]"):
        assert_device_matches(device, g.builder.build(), g.given())
