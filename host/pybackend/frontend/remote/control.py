"""Messages about a front end itself, and about its clients' tunnels to the engine's process."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pybackend.engine.answers import RefusalReason

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]

Service = Literal["http", "grpc"]

Place = tuple[Annotated[str, Meta(max_length=200)], Annotated[int, Meta(ge=0, le=65535)]]
"""An address and a port."""


# To the engine: tags 64 to 95


class Ready(Struct, array_like=True, frozen=True, gc=False, tag=64):
    """I can accept connections."""


class OpenTunnel(Struct, array_like=True, frozen=True, gc=False, tag=65):
    """I need a tunnel for a client: ``client`` and ``server`` are the ends of its connection, None for a Unix socket."""

    number: Natural
    service: Service
    client: Place | None
    server: Place | None
    is_secure: bool


class Alive(Struct, array_like=True, frozen=True, gc=False, tag=66):
    """The answer to :class:`Look`."""

    connections: Natural


class Line(Struct, array_like=True, frozen=True, gc=False, tag=67):
    """A line for the log."""

    level: Annotated[int, Meta(ge=0, le=50)]
    file: Annotated[str, Meta(max_length=100)]
    number: Natural
    text: Annotated[str, Meta(max_length=20_000)]


class Answered(Struct, array_like=True, frozen=True, gc=False, tag=68):
    """I have sent a client an answer of my own."""

    service: Service
    code: Annotated[str, Meta(max_length=40)]


class Refused(Struct, array_like=True, frozen=True, gc=False, tag=69):
    """I have refused a request: the arguments of :meth:`Refusals.add`."""

    service: Service
    reason: RefusalReason
    text: Annotated[str, Meta(max_length=2000)]
    model: Annotated[str, Meta(max_length=2000)]
    sender: Annotated[str, Meta(max_length=200)]


# To a front end: tags 96 to 127


class Certificates(Struct, array_like=True, frozen=True, gc=False, tag=96):
    """The contents of a port's PEM files, now or from now on."""

    service: Service
    chain: bytes
    key: bytes
    root: bytes | None
    mutual: bool


class Begin(Struct, array_like=True, frozen=True, gc=False, tag=97):
    """What you serve: the descriptors of your sockets, -1 for none, and the settings of the server that concern you."""

    http: int
    grpc: int
    certificates: list[Certificates]
    most_input_bytes: Natural
    most_memory_bytes: Natural
    keepalive: dict[str, float | int | bool]
    verbose_level: Natural


class Listen(Struct, array_like=True, frozen=True, gc=False, tag=98):
    """Accept connections now."""

    service: Service


class Tunnel(Struct, array_like=True, frozen=True, gc=False, tag=99):
    """The tunnel that you have asked for; its descriptor comes along."""

    number: Natural


class NoTunnel(Struct, array_like=True, frozen=True, gc=False, tag=100):
    """There is none: the server has no descriptors left."""

    number: Natural


class Look(Struct, array_like=True, frozen=True, gc=False, tag=101):
    """Are you there?"""


class LogLevel(Struct, array_like=True, frozen=True, gc=False, tag=102):
    """A client has changed which lines the log has."""

    verbose_level: Natural


class Stop(Struct, array_like=True, frozen=True, gc=False, tag=103):
    """Accept no more connections, and end after the last answer."""


FromFrontEnd = Ready | OpenTunnel | Alive | Line | Answered | Refused
FromEngine = Certificates | Begin | Listen | Tunnel | NoTunnel | Look | LogLevel | Stop
