"""What a host and a zygote say to each other: packets of json, one per message, over a socket that keeps them apart.

host                                        zygote
  <----------------- FORKED(0) ---------------      it has imported what every stub needs, and is ready
  ------------------ FORK(n) ---------------->      with three descriptors: socket, nudges, output
  <----------------- FORKED(n) ---------------      said by the new process itself, which is a child of the host
"""

import json
from typing import Any, NamedTuple, Sequence

ARGUMENT = "zygote"
"""The first argument of a stub's bundle that makes it a zygote."""

ZYGOTE_NAME, SPARE_NAME = "pb-zygote", "pb-spare"
"""What ``ps`` and ``/proc/<pid>/comm`` call a zygote, and what it has forked until that has a model."""

MOST_BYTES = 128 * 1024
"""What a packet may have: less than any socket takes."""

MARK = 10
"""``RLIMIT_LOCKS``, which Linux has not heeded since 2.4: what is started inherits it and cannot raise it, so its value tells
for ever whose a process is."""


class Fork(NamedTuple):
    """Bring a stub to life.

    Attributes:
        number: of the request, from 1 on.
        mark: of the process and all that it will start; 0 for none.
        cores: where it may run; everywhere if there are none.
        confinement: as JSON; empty if nothing confines it.
    """

    number: int
    mark: int
    cores: "Sequence[int]"
    confinement: str


class Forked(NamedTuple):
    """The answer to a request, or to none if ``number`` is 0; ``failure`` is empty if all went well."""

    number: int
    pid: int
    failure: str


def packed(message: "Sequence[Any]") -> bytes:
    """A message as a packet."""
    return json.dumps(message).encode()


def unpacked_fork(packet: bytes) -> Fork:
    """The request in a packet."""
    return Fork(*json.loads(packet))
