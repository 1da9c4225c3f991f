"""OpenVINO as a device: a program becomes one static model, compiled for an NPU, a GPU or any CPU."""
