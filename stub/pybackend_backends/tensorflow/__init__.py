"""Serves SavedModel directories with TensorFlow."""
