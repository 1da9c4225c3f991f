"""What model families are written in: a step, weights by role, attention over KV, feed-forward."""
