"""Serves OpenVINO's intermediate representation, and other files that OpenVINO reads, such as ONNX."""
