"""Language models on poot: checkpoints, tokenizers, model families, the driver.

Import from the modules: `poot_llm.registry` opens models, `poot_llm.driver` runs them, `poot_llm.generation` gives
text, `poot_llm.sampling` holds the parameters. This file imports nothing, so that the `poot` command starts at once.
"""
