"""Message classes of the ``.proto`` files in ``definitions``. Used by modelconfig and by the codecs of gRPC.

``make schema`` compiles the definitions into ``descriptors.binpb``; nothing is generated at install or at run time. The
descriptors lie in a private pool: Triton's client, imported into the same process, has messages of the same names in
protobuf's default pool, which refuses a second definition.
"""

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

DESCRIPTOR_SET = Path(__file__).with_name("descriptors.binpb")
"""A serialized ``google.protobuf.FileDescriptorSet``. Each file comes after those that it imports."""


@cache
def descriptor_pool() -> Any:
    """The pool with all messages and services; made by the first call."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(DESCRIPTOR_SET.read_bytes()).file:
        pool.Add(file)
    return pool


@cache
def message_class(name: str) -> Any:
    """The class of a message."""
    return GetMessageClass(descriptor_pool().FindMessageTypeByName(name))
