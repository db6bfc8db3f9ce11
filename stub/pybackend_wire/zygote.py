"""The protocol between host and zygote: packets of json, one per message, over a socket that keeps them apart.

host                                        zygote
  <----------------- FORKED(0) ---------------      it has imported what every stub needs, and is ready
  ------------------ FORK(n) ---------------->      with three descriptors: socket, nudges, output
  <----------------- FORKED(n) ---------------      sent by the new process itself, which is a child of the host
"""

import json
from typing import Any, Dict, NamedTuple, Sequence

ARGUMENT = "zygote"
"""As the first argument of a stub's bundle it starts a zygote."""

ZYGOTE_NAME, SPARE_NAME = "pb-zygote", "pb-spare"
"""The names in ``ps`` and ``/proc/<pid>/comm`` of a zygote, and of its fork until that has a model."""

MOST_BYTES = 128 * 1024
"""Largest packet: less than any socket's limit."""

MARK = 10
"""``RLIMIT_LOCKS``, which Linux has ignored since 2.4. Child processes inherit it and cannot raise it, so its value
always identifies the owner of a process."""


class Fork(NamedTuple):
    """Turn the spare into a stub."""

    number: int
    mark: int  # for the process and everything it starts; 0 for none
    cores: "Sequence[int]"  # the cores that it may use; empty for all
    confinement: str  # as JSON; empty for a process that is not confined
    variables: "Dict[str, str]"  # of its environment, besides those of the zygote


class Forked(NamedTuple):
    """The answer to a request, or an announcement if ``number`` is 0; ``failure`` is empty on success."""

    number: int
    pid: int
    failure: str


def packed(message: "Sequence[Any]") -> bytes:
    """Encode a message as a packet."""
    return json.dumps(message).encode()


def unpacked_fork(packet: bytes) -> Fork:
    """Decode the request in a packet."""
    return Fork(*json.loads(packet))
