"""All operator settings: read once, from the command line, and passed to the parts of the server that use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from pathlib import Path

from pybackend.observability.log_lines import LogSettings
from pybackend.observability.memory import usable_memory_bytes
from pybackend.observability.tracing.settings import TraceSettings

ALL_ADDRESSES = "0.0.0.0"  # noqa: S104  the reference's default, which containers rely on

EXIT_INTERRUPTED = 130
"""Exit status of a server that a signal has ended while its visitor was there."""

DEFAULT_BACKEND_DIRECTORY = Path("/opt/tritonserver/backends")
"""Backend directory of the reference's containers."""

LOCAL_ADDRESS = "unix:"
"""The addresses of Unix-domain sockets begin with this, and go on with a path."""


class ModelControlMode(StrEnum):
    """How the set of loaded models is decided."""

    NONE = "none"
    """By the repository: all of its models are loaded at start and stay loaded."""
    POLL = "poll"
    """By the repository: the server looks for changes, and loads and unloads models accordingly."""
    EXPLICIT = "explicit"
    """By request: ``--load-model`` at start, clients and models afterwards."""


_CORES_OF_ONE_PROCESS, _CORES_PER_FRONT_END, _MOST_USEFUL_FRONT_ENDS = 4, 4, 4
"""Up to so many cores, the server's process and those of models have enough work for all; beyond, one of four accepts
connections.

The server's process, which schedules, is busy before four front ends are: each spends one to two times as much on a
request.
"""


def usual_front_ends(cores: int) -> int:
    """How many processes should accept connections on so many cores."""
    return 0 if cores <= _CORES_OF_ONE_PROCESS else min(cores // _CORES_PER_FRONT_END, _MOST_USEFUL_FRONT_ENDS)


def half_of_memory_bytes() -> int:
    """Half of the server's memory, in bytes: the default limit on one model's tensors."""
    return usable_memory_bytes() // 2


def quarter_of_memory_bytes() -> int:
    """A quarter of the server's memory, in bytes: the default limit on data buffered for slow clients."""
    return usable_memory_bytes() // 4


@dataclass(frozen=True)
class TlsSettings:
    """The certificates of a port."""

    certificate: Path  # PEM file with the server's certificate, and those that lead to a known one
    key: Path  # PEM file with its private key
    root: Path | None = None  # PEM file with the certificates that sign those of clients; None for the system's
    mutual: bool = False  # clients must present a certificate


class ApiGroup(StrEnum):
    """A group of routes or methods that operators can restrict together."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"
    DIAGNOSTICS = "diagnostics"


@dataclass(frozen=True)
class Restriction:
    """A header that calls of some groups need."""

    groups: frozenset[ApiGroup]  # the restricted groups
    header: str
    value: str = field(repr=False)  # the value that it must have


class KeyExemption(StrEnum):
    """Calls that may need no API key."""

    HEALTH = "health"
    METRICS = "metrics"
    SAGEMAKER = "sagemaker"
    VERTEX_AI = "vertex-ai"


@dataclass(frozen=True)
class ApiKeySettings:
    """The keys that calls need."""

    file: Path  # one key a line
    exempt: frozenset[KeyExemption] = frozenset()  # calls that need none


@dataclass(frozen=True)
class FurtherPortSettings:
    """A port with the v2 protocol in another form, on all addresses."""

    owner: str  # the name of its row in :mod:`pybackend.plugins`
    name: str  # for messages
    port: int  # 0 takes a free one
    health_route: str  # path that tells whether the server should get requests
    exemption: KeyExemption  # opens the port to calls without API keys
    replaces_v2: bool  # HTTP and gRPC are served only if their flags say so
    own: object  # what only its owner knows


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def is_origin(text: str) -> bool:
    """True for an origin of web pages as browsers send it; ``null`` names none."""
    return _ORIGIN.fullmatch(text) is not None


@dataclass(frozen=True)
class CorsSettings:
    """The web pages whose scripts may call the HTTP port."""

    origins: frozenset[str] = frozenset()  # their origins, such as ``https://example.org``; ``*`` for all
    credentials: bool = False  # browsers may send cookies and client certificates


@dataclass(frozen=True)
class HttpSettings:
    """The inference endpoint and the metrics endpoint."""

    enabled: bool = True  # False serves no HTTP at all, only metrics
    # address to bind, or ``unix:`` and a path
    address: str = "0.0.0.0"  # noqa: S104  the reference's default, which containers rely on
    port: int = 8000  # port to bind; 0 takes a free one
    reuse_port: bool = False  # share the port with other servers that ask for it
    max_input_size_bytes: int = 64 * 1024 * 1024  # limit on JSON, raw and decompressed bodies
    # limit on buffered bytes of arriving bodies and of unread responses
    memory_limit_bytes: int = field(default_factory=quarter_of_memory_bytes)
    tls: TlsSettings | None = None  # certificates of the HTTP port; None for plain HTTP
    restrictions: tuple[Restriction, ...] = ()  # headers that calls need
    forwarded_headers: str = ""  # RE2 pattern of the names of headers that become request parameters; empty for none
    cors: CorsSettings = CorsSettings()  # the web pages that may call the HTTP port
    metrics_enabled: bool = True  # False serves no metrics
    # address of the metrics port
    metrics_address: str = "0.0.0.0"  # noqa: S104  likewise
    metrics_port: int = 8002  # port for ``/metrics``; 0 takes a free one


@dataclass(frozen=True)
class KeepaliveSettings:
    """How long a gRPC connection may be silent, how often its client may ping, and how old it may become."""

    time_s: float = 7200  # silence after which the server sends a PING; infinity for never
    timeout_s: float = 20  # time for the client to answer it
    # PINGs go to clients without open calls too, and such clients may ping as often as others
    permit_without_calls: bool = False
    max_pings_without_data: int = 2  # PINGs of the server between two answers, 0 for any number
    min_ping_interval_s: float = 300  # the least time between two PINGs of a client between which nothing is answered
    max_ping_strikes: int = 2  # PINGs of a client that may come earlier, 0 for any number
    max_age_s: float = inf  # age at which a connection is asked to end
    max_age_grace_s: float = inf  # time for its calls to end


@dataclass(frozen=True)
class GrpcSettings:
    """The gRPC endpoint."""

    enabled: bool = True  # False serves no gRPC
    # address to bind, or ``unix:`` and a path
    address: str = "0.0.0.0"  # noqa: S104  the reference's default, which containers rely on
    port: int = 8001  # port to bind; 0 takes a free one
    tls: TlsSettings | None = None  # its certificates; None for a plain port
    reuse_port: bool = False  # share the port with other servers that ask for it
    restrictions: tuple[Restriction, ...] = ()  # metadata that calls need
    forwarded_headers: str = ""  # RE2 pattern of the names of metadata that become request parameters; empty for none
    keepalive: KeepaliveSettings = KeepaliveSettings()  # the ends of connections
    # ``none``, ``low``, ``medium`` or ``high``: how responses of inference are compressed
    compression_level: str = "none"


@dataclass(frozen=True)
class MetricsSettings:
    """The contents of the metrics page."""

    cpu: bool = True  # show CPU and memory of the machine
    gpu: bool = True  # show the machine's GPUs
    interval_s: float = 2.0  # how often figures of the machine are taken
    counter_latencies: bool = True  # show counters of latencies
    summary_latencies: bool = False  # show quantiles of latencies
    summary_quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)  # the quantiles, from 0 to 1
    histogram_latencies: bool = False  # show histograms of the times to first responses


@dataclass(frozen=True)
class CacheSettings:
    """The response cache."""

    kind: str  # ``local`` or ``redis``
    options: Mapping[str, str]  # its validated settings


@dataclass(frozen=True)
class DebugSettings:
    """Models to run under a debugger."""

    models: tuple[str, ...] = ()
    # port of the first process; each further one takes the next. 0 takes free ports.
    port: int = 5678  # the one that editors suggest
    waits: bool = False  # if true, a process imports its model only after a debugger has attached


@dataclass(frozen=True)
class EnvironmentSettings:
    """Environments named by models."""

    cache_directory: Path | None = None  # where archives are unpacked, None for the usual place
    cache_limit_bytes: int | None = None  # unused environments are removed when the total exceeds this; None for never
    pack_at_load: bool = False  # a list of packages is packed when a model that names it is loaded


@dataclass(frozen=True)
class CloudRepositorySettings:
    """Repositories in cloud storage."""

    urls: tuple[str, ...] = ()
    cache_directory: Path | None = None  # keeps what was downloaded, None for the usual place
    kept_in: tuple[Path, ...] = ()  # the directories that keep it
    directories: tuple[Path, ...] = ()  # the local directories that show them; empty until the server has made them


@dataclass(frozen=True)
class SandboxSettings:
    """How strongly models are isolated."""

    level: str = "standard"  # level for models that name none: ``off``, ``standard`` or ``strict``
    floor: str = "off"  # no model runs at a lower level, or widens this one
    required: bool = False  # a model is refused if a layer of its sandbox is not in force
    unix_sockets: bool = True  # models below ``strict`` may use Unix sockets with a path unless they say otherwise
    overrides: bool = False  # models may supply configurations and files when they load models of other authors, too
    homes_limit_bytes: int = 100 * 1024**3  # unused homes of models are removed when all of them together exceed it


@dataclass(frozen=True)
class ModelSettings:
    """How models are loaded and run."""

    control: ModelControlMode = ModelControlMode.NONE  # how the set of loaded models is decided
    poll_s: float | None = 15  # in mode ``poll``, time between looks for changes; None for never
    # in mode ``poll``, a model is loaded once its files have stayed the same for this long
    settle_s: float = 1.0  # so that no half of a copy is loaded
    startup_models: tuple[str, ...] | None = None  # names of the models to load at start, None for all
    # ``configs/<config_name>.pbtxt`` replaces config.pbtxt in models that have it; ``""`` for none
    config_name: str = ""
    load_count: int = 4  # number of models that may load at the same time
    load_retry_count: int = 0  # how often a failed load of a version is tried again
    auto_complete: bool = True  # models may complete their configuration
    validate_outputs: bool = False  # outputs must be as configured, in models that do not say
    gpu_models_on_cpu: bool = False  # on a machine without a GPU, models that are configured for one run on the CPU
    # limit on input memory per model, and on output memory per instance
    memory_limit_bytes: int = field(default_factory=half_of_memory_bytes)
    process_memory_limit_bytes: int = 0  # limit on a process's own memory, in models that do not say; 0 for none
    # how long running requests and ``finalize`` may take when the server stops, and ``finalize`` when a version
    # is replaced or unloaded
    exit_timeout_s: float = 30
    # how long a replaced version may go on with an execution for which nobody waits; None for as long as it likes
    abandoned_limit_s: float | None = None
    # cores of the processes of instances, by the policy's name
    host_policies: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def is_explicit(self) -> bool:
        """True if models may be loaded and unloaded while the server runs."""
        return self.control is ModelControlMode.EXPLICIT

    @property
    def looks_every_s(self) -> float | None:
        """Time between looks for changes in the repositories; None if nothing looks for them."""
        return self.poll_s if self.control is ModelControlMode.POLL else None

    @property
    def tracks_files(self) -> bool:
        """True if later loads compare a model's files with those of the version that serves."""
        return self.is_explicit or self.looks_every_s is not None


@dataclass(frozen=True)
class Settings:
    """The settings of one server."""

    repositories: tuple[Path, ...]  # directories of models
    model_directories: tuple[Path, ...] = ()  # directories of single models, which are served besides
    cloud_repositories: CloudRepositorySettings = CloudRepositorySettings()  # the repositories in cloud storage
    model_namespacing: bool = False  # several repositories may have a model of the same name
    models: ModelSettings = field(default_factory=ModelSettings)  # how models are loaded and run
    backend_directory: Path = DEFAULT_BACKEND_DIRECTORY  # directory of the operator's own backends, if it exists
    # of ``--backend-config``, by backend; ``""`` has those of all backends
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    server_id: str = "triton"  # name in the server's metadata
    # how long clients may go on with requests on connections that they have when the server stops
    exit_keepalive_s: float = 3
    exit_on_error: bool = True  # a model that fails to load at start ends the server
    strict_readiness: bool = True  # the server is ready only if every model is
    zygotes: bool = True  # processes of models may be forked from one with preloaded modules
    fast_paths: bool = True  # front ends remember recurring requests
    # limit on the tensor memory of all models together
    tensor_memory_limit_bytes: int = field(default_factory=half_of_memory_bytes)
    http: HttpSettings = HttpSettings()  # the HTTP and metrics endpoints
    grpc: GrpcSettings = GrpcSettings()  # the gRPC endpoint
    # separate processes that accept connections of HTTP and gRPC; 0: the server's process does
    front_ends: int = 0
    metrics: MetricsSettings = MetricsSettings()  # the contents of the metrics page
    api_keys: ApiKeySettings | None = None  # the keys that calls need; None if they need none
    pools_file: Path | None = None  # names the models of other servers; None if this one has all
    further_ports: tuple[FurtherPortSettings, ...] = ()  # with the v2 protocol in other forms
    log: LogSettings = LogSettings()  # which log lines are written, and where
    trace: TraceSettings = TraceSettings()  # which requests are traced, and where to
    debug: DebugSettings = DebugSettings()  # models under a debugger
    lends_terminal: bool = False  # models that stop at a breakpoint get this process's terminal
    warns_of_bytes: bool = False  # models' Pythons look for bytes that are compared with str, or made to it
    cache: CacheSettings | None = None  # the response cache, None for none
    max_queued_bytes: int | None = None  # limit on the input bytes of queued and running requests, None for no limit
    # count of each resource, by name and device; None if instances need not hold any
    resource_limits: Mapping[tuple[str, int | None], int] | None = None
    environments: EnvironmentSettings = EnvironmentSettings()  # environments named by models
    sandbox: SandboxSettings = SandboxSettings()  # how strongly models are isolated
    client_shared_memory: bool = False  # clients may register shared memory of this machine
    # what packages around the server have decided by their own flags, by the names of their rows in
    # :mod:`pybackend.plugins`
    extensions: Mapping[str, object] = field(default_factory=dict)
    # the socket of the program whose functions are the models of the first repository, see
    # :mod:`pybackend.process.caller`; None: all models have code
    caller: int | None = None
    warnings: tuple[str, ...] = ()  # sentences about flags that have no effect, for the log
    # name, value without secrets, and source of each flag
    in_force: tuple[tuple[str, str, str], ...] = field(default=(), compare=False)

    @property
    def places(self) -> tuple[Path, ...]:
        """All directories with models, those of cloud storage once they were made."""
        return (*self.repositories, *self.model_directories, *self.cloud_repositories.directories)

    @property
    def place_names(self) -> tuple[str, ...]:
        return (*map(str, (*self.repositories, *self.model_directories)), *self.cloud_repositories.urls)

    def with_extension(self, name: str, decided: object) -> Settings:
        """The same with what one of these packages has decided."""
        return replace(self, extensions={**self.extensions, name: decided})

    def with_local(self, directories: tuple[Path, ...]) -> Settings:
        """The same with the local directories of repositories in cloud storage."""
        return replace(self, cloud_repositories=replace(self.cloud_repositories, directories=directories))
