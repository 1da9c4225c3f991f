"""poot_executor."""
