"""Serves ONNX files with ONNX Runtime."""
