"""Codecs between bytes and domain objects: pure functions without sockets or policy, independent of any server."""
