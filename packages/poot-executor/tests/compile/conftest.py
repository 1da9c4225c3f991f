"""What tests of the compiler share: graphs with inputs, run on the reference device against the oracle."""

import pytest

from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, Target, compile


@pytest.fixture
def g(rng, request):
    """A recorder: a builder beside the inputs of its graph."""
    return Recorder(request.node.originalname, rng)


@pytest.fixture
def run():
    """run(recorder, caps): the match of its graph on a reference device with these caps."""

    def on(recorder, caps=Caps(), **options):  # noqa: B008
        return assert_device_matches(ReferenceDevice(caps), recorder.builder.build(), recorder.given(), **options)

    return on


@pytest.fixture
def compiled():
    """compiled(recorder, caps): the program of its graph, run nowhere."""

    def made(recorder, caps=Caps(), *options):  # noqa: B008
        return compile(recorder.builder.build(), Target("paper", caps), *options)

    return made
