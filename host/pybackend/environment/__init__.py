"""Where a model's Python comes from: the host's own, a directory, or a packed environment."""
