"""Serves files of LiteRT, formerly TensorFlow Lite."""
