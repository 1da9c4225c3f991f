"""A whole-graph device in numpy float32: the example of docs/add-a-device.md."""
