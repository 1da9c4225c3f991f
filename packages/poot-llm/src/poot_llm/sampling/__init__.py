"""How the next token is chosen: a request's parameters, the suffix of a step graph, and the slots that rows fill.

A driver picks the least suffix that serves all rows of a step (`SamplingParams.suffix`, `Suffix.serves`), keeps one
`SamplerSlots` for each entry, and fills it with a `SamplerRow` for each row that is in use.
"""

from poot_llm.sampling.history import History
from poot_llm.sampling.keys import (
    AHEAD,
    BIAS_ENTRIES,
    BIAS_IDS,
    BIAS_VALUES,
    COUNTS,
    HISTORY,
    MASK,
    MOST_LOGPROBS,
    PARAMS,
    PENALTIES,
    SEED,
    TOP_K,
    SamplerShape,
    Suffix,
    slot_types,
)
from poot_llm.sampling.logprobs import TokenLogprobs, read_logprobs
from poot_llm.sampling.params import SamplingParams
from poot_llm.sampling.slots import SamplerRow, SamplerSlots, allowed_bits, sampler_inputs
from poot_llm.sampling.suffix import append_suffix

__all__ = [
    "AHEAD",
    "BIAS_ENTRIES",
    "BIAS_IDS",
    "BIAS_VALUES",
    "COUNTS",
    "HISTORY",
    "MASK",
    "MOST_LOGPROBS",
    "PARAMS",
    "PENALTIES",
    "SEED",
    "TOP_K",
    "History",
    "SamplerRow",
    "SamplerShape",
    "SamplerSlots",
    "SamplingParams",
    "Suffix",
    "TokenLogprobs",
    "allowed_bits",
    "append_suffix",
    "read_logprobs",
    "sampler_inputs",
    "slot_types",
]
