"""Message classes of the ``.proto`` files in ``definitions``. Used by modelconfig and by the codecs of gRPC.

``make schema`` compiles the definitions into ``descriptors.binpb``; nothing is generated at install or at run time. The
descriptors lie in a private pool: Triton's client, imported into the same process, has messages of the same names in
protobuf's default pool, which refuses a second definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

DESCRIPTOR_SET = Path(__file__).with_name("descriptors.binpb")
"""A serialized ``google.protobuf.FileDescriptorSet``. Each file comes after those that it imports."""


@cache
def descriptor_pool() -> Any:
    """The pool with all messages and services; made by the first call."""
    pool = DescriptorPool()
    for file in _files(DESCRIPTOR_SET.read_bytes()):
        pool.AddSerializedFile(file)
    return pool


@cache
def message_class(name: str) -> Any:
    """The class of a message.

    Args:
        name: its full name, such as ``inference.ModelConfig``.

    Raises:
        KeyError: no definition has such a message.
    """
    return GetMessageClass(descriptor_pool().FindMessageTypeByName(name))


def _files(descriptor_set: bytes) -> Iterator[bytes]:
    """The serialized files of a set. Its own message class would do the same, but costs 2 ms of every start to import."""
    at = 0
    while at < len(descriptor_set):
        at += 1  # the tag of the set's only field
        size = shift = 0
        while True:
            byte = descriptor_set[at]
            at += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        yield descriptor_set[at : at + size]
        at += size
