"""The gRPC front end: calls and messages on HTTP/2, in callbacks on the event loop."""
