"""Devices that take whole graphs: OpenVINO (`vpu`)."""
