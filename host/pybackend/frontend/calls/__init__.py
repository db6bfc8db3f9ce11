"""Calls between models, and other services that the host provides to running models.

The calling model gets the text of an InferenceError. A RemoteProtocolError ends its process.
"""
