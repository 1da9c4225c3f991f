"""The driver: sequences of one model on one executor, through steps that are prepared up front."""

from poot_llm.driver.driver import Driver
from poot_llm.driver.entries import compile_step
from poot_llm.driver.options import DriverOptions, EntryKey, StepSet
from poot_llm.driver.sequence import FinishReason, NonFiniteLogits, Sequence, StepResult, Timings
from poot_llm.driver.tokens import GeneratedToken, TokenStream

__all__ = [
    "Driver",
    "DriverOptions",
    "EntryKey",
    "FinishReason",
    "GeneratedToken",
    "NonFiniteLogits",
    "Sequence",
    "StepResult",
    "StepSet",
    "Timings",
    "TokenStream",
    "compile_step",
]
