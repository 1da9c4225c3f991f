"""Calls of tools: how models write them, how they are forced, and how they are found in what a model wrote."""
