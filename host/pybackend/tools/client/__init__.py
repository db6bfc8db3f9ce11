"""A client for one request: reads values from a command line, sends them as tensors, and shows the response."""
