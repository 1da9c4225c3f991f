"""Graphs: the typed list of primitive equations that a model is traced into."""
