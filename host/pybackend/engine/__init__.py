"""The engine: the only way for requests to reach a model.

A refusal is an InferenceError with the client's code and text.
"""
