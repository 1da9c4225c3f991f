"""Language models on poot: checkpoints, tokenizers, model families, the driver."""

from poot_llm.driver import Driver, DriverOptions, FinishReason
from poot_llm.generation import Completion, TextPiece, TextStream, complete
from poot_llm.models import Family
from poot_llm.registry import ModelHandle, Models, Registry, standard_registry
from poot_llm.sampling import SamplingParams

__all__ = [
    "Completion",
    "Driver",
    "DriverOptions",
    "Family",
    "FinishReason",
    "ModelHandle",
    "Models",
    "Registry",
    "SamplingParams",
    "TextPiece",
    "TextStream",
    "complete",
    "standard_registry",
]
