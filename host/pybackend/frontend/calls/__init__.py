"""Calls between models, and other services that the host provides to running models."""
