"""poot_eval."""
