"""Model families, a file each, and what they share: typed configuration fields, weight maps."""

from poot_llm.models.bert import BERT
from poot_llm.models.family import Config, Family
from poot_llm.models.llama import LLAMA
from poot_llm.models.weight_map import BoundWeights, Expected, bind_weights

__all__ = ["BERT", "LLAMA", "BoundWeights", "Config", "Expected", "Family", "bind_weights"]
