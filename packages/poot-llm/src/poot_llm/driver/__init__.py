"""The driver: sequences of one model on one executor, through steps that are prepared up front."""

from poot_llm.driver.driver import Driver
from poot_llm.driver.encoding import Encoded, NonFiniteEmbedding
from poot_llm.driver.entries import compile_step
from poot_llm.driver.inputs import InputRows
from poot_llm.driver.kv import KvUse
from poot_llm.driver.kv_fit import KvPlan
from poot_llm.driver.options import DriverOptions, EntryKey, Layout
from poot_llm.driver.scheduler import Delivery, Request, Scheduler
from poot_llm.driver.sequence import FinishReason, Guide, NonFiniteLogits, NoRoom, Sequence, StepResult, Timings
from poot_llm.driver.step_set import StepSet
from poot_llm.driver.tokens import GeneratedToken, TokenStream

__all__ = [
    "Delivery",
    "Driver",
    "DriverOptions",
    "Encoded",
    "EntryKey",
    "FinishReason",
    "GeneratedToken",
    "Guide",
    "InputRows",
    "KvPlan",
    "KvUse",
    "Layout",
    "NoRoom",
    "NonFiniteEmbedding",
    "NonFiniteLogits",
    "Request",
    "Scheduler",
    "Sequence",
    "StepResult",
    "StepSet",
    "Timings",
    "TokenStream",
    "compile_step",
]
