"""Operations in turn are rounded in turn: OpenVINO would make one of two with constants."""

import numpy as np
import pytest

from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.session import open_session

A, B = np.float32(1.5), np.float32(0.7)
IN_TURN = {
    "(a - x) b": lambda x, a, b: (a - x) * b,
    "(x + a) b": lambda x, a, b: (x + a) * b,
    "(x a) b": lambda x, a, b: (x * a) * b,
    "(x + b) + a": lambda x, a, b: (x + b) + a,
    "(x - b) - a": lambda x, a, b: (x - b) - a,
}


@pytest.mark.parametrize("shape", [(64,), (32, 3), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("name", IN_TURN)
def test_a_constant_after_another_is_a_rounding_of_its_own(device, rng, name, shape):
    g = Recorder("turns", rng)
    x = g.floats(*shape, low=1, high=2)
    g.output(IN_TURN[name](x, float(A), float(B)))
    given = dict(g.given())
    (values,) = given.values()
    with open_session(device, g.builder.build(), given) as session:
        result = session.run(session.lower())
    (got,) = result.outputs.values()
    np.testing.assert_array_equal(got, IN_TURN[name](values, A, B))
