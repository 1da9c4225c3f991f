"""Guided decoding: answers that a schema, an expression or a grammar allows, token by token."""
