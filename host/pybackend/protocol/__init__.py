"""Codecs between bytes and domain objects: pure functions without sockets or policy, independent of any server.

``json`` and ``grpc`` read requests of infer into plans, and write responses. ``documents`` has the small documents
around infer. What all of them share lies here: plans, their memory, limits and refusals.

Readers raise InferenceError: INTERNAL for bytes that are no JSON or protobuf and for members of the wrong JSON type,
NOT_FOUND for shared memory that nobody has registered, and INVALID_ARG for all other mistakes of a client.
"""
