"""Messages about a front end itself, and about its clients' tunnels to the engine's process."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from pybackend.settings import GrpcSettings, HttpSettings, KeyExemption

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]

Service = Literal["http", "grpc"]

Place = tuple[Annotated[str, Meta(max_length=200)], Annotated[int, Meta(ge=0, le=65535)]]
"""An address and a port."""


# To the engine: tags 64 to 95


class Ready(Struct, array_like=True, frozen=True, gc=False, tag=64):
    """I can accept connections."""


class Accepting(Struct, array_like=True, frozen=True, gc=False, tag=70):
    """I accept the connections of a port, or cannot: then ``failure`` says why."""

    service: Service
    failure: Annotated[str, Meta(max_length=200)]


class OpenTunnel(Struct, array_like=True, frozen=True, gc=False, tag=65):
    """I need a tunnel for a client: ``client`` and ``server`` are the ends of its connection, None for a Unix socket."""

    number: Natural
    service: Service
    client: Place | None
    server: Place | None
    is_secure: bool


class Alive(Struct, array_like=True, frozen=True, gc=False, tag=66):
    """The answer to :class:`Look`: I have done all that I was told before it."""

    number: Natural
    connections: Natural


class Line(Struct, array_like=True, frozen=True, gc=False, tag=67):
    """A line for the log."""

    level: Annotated[int, Meta(ge=0, le=50)]
    file: Annotated[str, Meta(max_length=100)]
    number: Natural
    text: Annotated[str, Meta(max_length=20_000)]


class Accessed(Struct, array_like=True, frozen=True, gc=False, tag=68):
    """I have answered a request: the fields of :class:`pybackend.observability.access_log.Access`."""

    protocol: Service
    client: Annotated[str, Meta(max_length=200)]
    method: Annotated[str, Meta(max_length=1000)]
    path: Annotated[str, Meta(max_length=2000)]
    status: Annotated[int, Meta(ge=0, le=999)] | Annotated[str, Meta(max_length=40)] | None
    received_bytes: int
    sent_bytes: int
    duration_ns: Natural
    ended_s: Annotated[float, Meta(ge=0, lt=2**33)]
    about: Annotated[dict[str, str], Meta(max_length=10)]


class Quiet(Struct, array_like=True, frozen=True, gc=False, tag=69):
    """I was told to stop, and models have all that may still come on connections that clients have."""


# To a front end: tags 96 to 127


class Certificates(Struct, array_like=True, frozen=True, gc=False, tag=96):
    """The contents of a port's PEM files, now or from now on."""

    service: Service
    chain: bytes
    key: bytes
    root: bytes | None
    mutual: bool


class Begin(Struct, array_like=True, frozen=True, gc=False, tag=97):
    """The ports to serve.

    Attributes:
        sockets: the descriptors of your listening sockets.
        http, grpc: the operator's settings, with digests in the place of secrets, and without files.
        keys: digests of the API keys; None if calls need none.
        exempt: calls that need no key.
        memory_limit_bytes: your part of the memory for slow clients.
        logs_access: every answered request is reported.
    """

    sockets: dict[Service, Natural]
    certificates: list[Certificates]
    http: HttpSettings
    grpc: GrpcSettings
    keys: list[bytes] | None
    exempt: frozenset[KeyExemption]
    memory_limit_bytes: Natural
    fast_paths: bool
    logs_access: bool
    verbose_level: Natural


class Keys(Struct, array_like=True, frozen=True, gc=False, tag=104):
    """The digests of the API keys from now on."""

    digests: list[bytes]


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
    """Are you there? :class:`Alive` answers."""

    number: Natural


class LogLevel(Struct, array_like=True, frozen=True, gc=False, tag=102):
    """A client has changed which lines the log has."""

    verbose_level: Natural


class Stop(Struct, array_like=True, frozen=True, gc=False, tag=103):
    """Accept no more connections, and end once the last one is closed: its client is told with the next answer."""


class CloseIdle(Struct, array_like=True, frozen=True, gc=False, tag=105):
    """Wait no longer for clients that keep their connections."""


FromFrontEnd = Ready | Accepting | OpenTunnel | Alive | Line | Accessed | Quiet
FromEngine = Certificates | Begin | Listen | Tunnel | NoTunnel | Look | LogLevel | Stop | CloseIdle | Keys
