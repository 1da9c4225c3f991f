"""The HTTP half of the server: requests checked by name, prompts, answers as text, streams, metrics, life cycle."""
