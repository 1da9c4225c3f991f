"""An HSA runtime without hardware: a library with the functions of libhsa-runtime64, compiled when tests need it.

It validates every packet as strictly as the specification allows, runs what barrier bits leave unordered in the worst
order, and injects faults. What a kernel does is up to an executor that the test gives.
"""

from poot_eval.hsa.code_object import Descriptor, code_object
from poot_eval.hsa.runtime import FakeRuntime, Injection, Launch, build_or_skip, build_runtime

__all__ = ["Descriptor", "FakeRuntime", "Injection", "Launch", "build_or_skip", "build_runtime", "code_object"]
