"""Codecs between bytes and domain objects: pure functions, no sockets, no policy, no knowledge of who serves them."""
