"""Codecs between bytes and domain objects: pure functions without sockets or policy, independent of any server.

``json`` and ``grpc`` read requests of infer into plans, and write responses. ``documents`` has the small documents around infer. What
all of them share lies here: plans, their memory, limits and refusals.
"""
