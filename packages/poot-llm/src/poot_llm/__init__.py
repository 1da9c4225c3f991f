"""poot_llm."""
