"""JSON, and JSON with binary tensors behind it: requests and responses of infer over HTTP."""
