"""Devices that take whole graphs: OpenVINO (`vpu`), and AMD's NPUs through XRT (`xdna`)."""
