"""The engine: the only way for requests to reach a model."""
