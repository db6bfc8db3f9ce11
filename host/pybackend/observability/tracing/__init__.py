"""Traces: which requests are sampled, what is recorded about them, and where the records go."""
