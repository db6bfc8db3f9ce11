"""The environment that a model runs in: the host's own Python, a directory, or a packed environment."""
