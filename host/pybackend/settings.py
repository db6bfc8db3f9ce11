"""All operator settings: read once, from the command line, and passed to the parts of the server that use them."""

from __future__ import annotations

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


def half_of_memory_bytes() -> int:
    """Half of the server's memory, in bytes: the default limit on one model's tensors."""
    return usable_memory_bytes() // 2


def quarter_of_memory_bytes() -> int:
    """A quarter of the server's memory, in bytes: the default limit on data buffered for slow clients."""
    return usable_memory_bytes() // 4


@dataclass(frozen=True)
class TlsSettings:
    """The certificates of a port.

    Attributes:
        certificate: PEM file with the server's certificate, and those that lead to a known one.
        key: PEM file with its private key.
        root: PEM file with the certificates that sign those of clients; None for the system's.
        mutual: clients must present a certificate.
    """

    certificate: Path
    key: Path
    root: Path | None = None
    mutual: bool = False


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


@dataclass(frozen=True)
class Restriction:
    """A header that calls of some groups need.

    Attributes:
        groups: the restricted groups.
        header: the header's name.
        value: the value that it must have.
    """

    groups: frozenset[ApiGroup]
    header: str
    value: str = field(repr=False)


class KeyExemption(StrEnum):
    """Calls that may need no API key."""

    HEALTH = "health"
    METRICS = "metrics"
    SAGEMAKER = "sagemaker"
    VERTEX_AI = "vertex-ai"


@dataclass(frozen=True)
class ApiKeySettings:
    """The keys that calls need.

    Attributes:
        file: one key a line.
        exempt: calls that need none.
    """

    file: Path
    exempt: frozenset[KeyExemption] = frozenset()


@dataclass(frozen=True)
class CloudSettings:
    """The front end for a cloud.

    Attributes:
        name: the cloud's, for the log.
        port: port to bind; 0 takes a free one.
        health_route: path that tells whether the server should get requests.
        predict_route: path of inference.
        media_type: of bodies with binary tensors; the length of their JSON part follows.
        exemption: opens the port to calls without API keys.
        health: ``ready`` or ``live``: the meaning of the health route.
        action: ``infer``, ``generate`` or ``generate_stream``: the form of requests.
        model: the model that answers; empty for the server's only one.
        model_source: the setting of ``model``, for messages.
        redirect_header: header that names another route of the v2 protocol, in lower case; empty for none.
    """

    name: str
    port: int
    health_route: str
    predict_route: str
    media_type: str
    exemption: KeyExemption
    health: str = "ready"
    action: str = "infer"
    model: str = ""
    model_source: str = ""
    redirect_header: str = ""


@dataclass(frozen=True)
class CorsSettings:
    """The web pages whose scripts may call the HTTP port.

    Attributes:
        origins: their origins, such as ``https://example.org``; ``*`` for all.
        credentials: browsers may send cookies and client certificates.
    """

    origins: frozenset[str]
    credentials: bool = False


@dataclass(frozen=True)
class HttpSettings:
    """The inference endpoint and the metrics endpoint.

    Attributes:
        enabled: False serves no HTTP at all, only metrics.
        address: address to bind, or ``unix:`` and a path.
        port: port to bind; 0 takes a free one.
        reuse_port: share the port with other servers that ask for it.
        max_input_size_bytes: limit on JSON, raw and decompressed bodies.
        memory_limit_bytes: limit on buffered bytes of arriving bodies and of unread responses.
        tls: certificates of the HTTP port; None for plain HTTP.
        restrictions: headers that calls need.
        forwarded_headers: RE2 pattern of the names of headers that become request parameters; empty for none.
        cors: the web pages that may call the HTTP port; None if only its origin may.
        metrics_enabled: False serves no metrics.
        metrics_address: address of the metrics port.
        metrics_port: port for ``/metrics``; 0 takes a free one.
    """

    enabled: bool = True
    address: str = "0.0.0.0"  # noqa: S104  the reference's default, which containers rely on
    port: int = 8000
    reuse_port: bool = False
    max_input_size_bytes: int = 64 * 1024 * 1024
    memory_limit_bytes: int = field(default_factory=quarter_of_memory_bytes)
    tls: TlsSettings | None = None
    restrictions: tuple[Restriction, ...] = ()
    forwarded_headers: str = ""
    cors: CorsSettings | None = None
    metrics_enabled: bool = True
    metrics_address: str = "0.0.0.0"  # noqa: S104  likewise
    metrics_port: int = 8002


@dataclass(frozen=True)
class KeepaliveSettings:
    """How long a gRPC connection may be silent, how often its client may ping, and how old it may become.

    Attributes:
        time_s: silence after which the server sends a PING; infinity for never.
        timeout_s: time for the client to answer it.
        permit_without_calls: PINGs go to clients without open calls too, and such clients may ping as often as others.
        max_pings_without_data: PINGs of the server between two answers, 0 for any number.
        min_ping_interval_s: the least time between two PINGs of a client between which nothing is answered.
        max_ping_strikes: PINGs of a client that may come earlier, 0 for any number.
        max_age_s: age at which a connection is asked to end.
        max_age_grace_s: time for its calls to end.
    """

    time_s: float = 7200
    timeout_s: float = 20
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_ping_interval_s: float = 300
    max_ping_strikes: int = 2
    max_age_s: float = inf
    max_age_grace_s: float = inf


@dataclass(frozen=True)
class GrpcSettings:
    """The gRPC endpoint.

    Attributes:
        enabled: False serves no gRPC.
        address: address to bind, or ``unix:`` and a path.
        port: port to bind; 0 takes a free one.
        tls: its certificates; None for a plain port.
        reuse_port: share the port with other servers that ask for it.
        restrictions: metadata that calls need.
        forwarded_headers: RE2 pattern of the names of metadata that become request parameters; empty for none.
        keepalive: the ends of connections.
        compression_level: ``none``, ``low``, ``medium`` or ``high``: how responses of inference are compressed.
    """

    enabled: bool = True
    address: str = "0.0.0.0"  # noqa: S104  the reference's default, which containers rely on
    port: int = 8001
    tls: TlsSettings | None = None
    reuse_port: bool = False
    restrictions: tuple[Restriction, ...] = ()
    forwarded_headers: str = ""
    keepalive: KeepaliveSettings = KeepaliveSettings()
    compression_level: str = "none"


@dataclass(frozen=True)
class MetricsSettings:
    """The contents of the metrics page.

    Attributes:
        cpu: show CPU and memory of the machine.
        gpu: show the machine's GPUs.
        interval_s: how often figures of the machine are taken.
        counter_latencies: show counters of latencies.
        summary_latencies: show quantiles of latencies.
        summary_quantiles: the quantiles, from 0 to 1.
        histogram_latencies: show histograms of the times to first responses.
    """

    cpu: bool = True
    gpu: bool = True
    interval_s: float = 2.0
    counter_latencies: bool = True
    summary_latencies: bool = False
    summary_quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)
    histogram_latencies: bool = False


@dataclass(frozen=True)
class CacheSettings:
    """The response cache.

    Attributes:
        kind: ``local`` or ``redis``.
        options: its validated settings.
    """

    kind: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class DebugSettings:
    """Models to run under a debugger.

    Attributes:
        models: their names.
        port: port of the first process; each further one takes the next. 0 takes free ports.
        waits: if true, a process imports its model only after a debugger has attached.
    """

    models: tuple[str, ...] = ()
    port: int = 5678  # the one that editors suggest
    waits: bool = False


@dataclass(frozen=True)
class EnvironmentSettings:
    """Environments named by models.

    Attributes:
        cache_directory: where archives are unpacked, None for the usual place.
        cache_limit_bytes: unused environments are removed when the total exceeds this; None for never.
        pack_at_load: a list of packages is packed when a model that names it is loaded.
    """

    cache_directory: Path | None = None
    cache_limit_bytes: int | None = None
    pack_at_load: bool = False


@dataclass(frozen=True)
class CloudRepositorySettings:
    """Repositories in cloud storage.

    Attributes:
        urls: their places.
        cache_directory: keeps what was downloaded, None for the usual place.
        directories: the local directories that show them; empty until the server has made them.
    """

    urls: tuple[str, ...] = ()
    cache_directory: Path | None = None
    directories: tuple[Path, ...] = ()


@dataclass(frozen=True)
class SandboxSettings:
    """How strongly models are isolated.

    Attributes:
        level: level for models that name none: ``off``, ``standard`` or ``strict``.
        floor: no model runs at a lower level, or widens this one.
        required: a model is refused if a layer of its sandbox is not in force.
        overrides: models may supply configurations and files when they load models of other authors, too.
    """

    level: str = "standard"
    floor: str = "off"
    required: bool = False
    overrides: bool = False


@dataclass(frozen=True)
class ModelSettings:
    """How models are loaded and run.

    Attributes:
        control: how the set of loaded models is decided.
        poll_s: in mode ``poll``, time between looks for changes; None for never.
        settle_s: in mode ``poll``, a model is loaded once its files have stayed the same for this long.
        startup_models: names of the models to load at start, None for all.
        config_name: ``configs/<config_name>.pbtxt`` replaces config.pbtxt in models that have it; ``""`` for none.
        load_count: number of models that may load at the same time.
        load_retry_count: how often a failed load of a version is tried again.
        auto_complete: models may complete their configuration.
        validate_outputs: outputs must be as configured, in models that do not say.
        gpu_models_on_cpu: on a machine without a GPU, models that are configured for one run on the CPU.
        memory_limit_bytes: limit on input memory per model, and on output memory per instance.
        exit_timeout_s: how long running requests and ``finalize`` may take when the server stops, and ``finalize`` when a
            version is replaced or unloaded.
        abandoned_limit_s: how long a replaced version may go on with an execution for which nobody waits; None for as long
            as it likes.
        host_policies: cores of the processes of instances, by the policy's name.
    """

    control: ModelControlMode = ModelControlMode.NONE
    poll_s: float | None = 15
    settle_s: float = 1.0  # so that no half of a copy is loaded
    startup_models: tuple[str, ...] | None = None
    config_name: str = ""
    load_count: int = 4
    load_retry_count: int = 0
    auto_complete: bool = True
    validate_outputs: bool = False
    gpu_models_on_cpu: bool = False
    memory_limit_bytes: int = field(default_factory=half_of_memory_bytes)
    exit_timeout_s: float = 30
    abandoned_limit_s: float | None = None
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
    """The settings of one server.

    Attributes:
        repositories: directories of models.
        model_directories: directories of single models, which are served besides.
        cloud_repositories: the repositories in cloud storage.
        model_namespacing: several repositories may have a model of the same name.
        models: how models are loaded and run.
        backend_directory: directory of the operator's own backends, if it exists.
        backend_settings: of ``--backend-config``, by backend; ``""`` has those of all backends.
        server_id: name in the server's metadata.
        exit_on_error: a model that fails to load at start ends the server.
        strict_readiness: the server is ready only if every model is.
        zygotes: processes of models may be forked from one with preloaded modules.
        fast_paths: front ends remember recurring requests.
        shared_core: the server and models' processes wait on one core while requests come one at a time.
        tensor_memory_limit_bytes: limit on the tensor memory of all models together.
        http: the HTTP and metrics endpoints.
        grpc: the gRPC endpoint.
        metrics: the contents of the metrics page.
        api_keys: the keys that calls need; None if they need none.
        clouds: further ports, for clouds.
        log: which log lines are written, and where.
        trace: which requests are traced, and where to.
        debug: models under a debugger.
        lends_terminal: models that stop at a breakpoint get this process's terminal.
        cache: the response cache, None for none.
        max_queued_bytes: limit on the input bytes of queued and running requests, None for no limit.
        resource_limits: count of each resource, by name and device; None if instances need not hold any.
        environments: environments named by models.
        sandbox: how strongly models are isolated.
        client_shared_memory: clients may register shared memory of this machine.
        warnings: sentences about flags that have no effect, for the log.
    """

    repositories: tuple[Path, ...]
    model_directories: tuple[Path, ...] = ()
    cloud_repositories: CloudRepositorySettings = CloudRepositorySettings()
    model_namespacing: bool = False
    models: ModelSettings = field(default_factory=ModelSettings)
    backend_directory: Path = DEFAULT_BACKEND_DIRECTORY
    backend_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    server_id: str = "triton"
    exit_on_error: bool = True
    strict_readiness: bool = True
    zygotes: bool = True
    fast_paths: bool = True
    shared_core: bool = True
    tensor_memory_limit_bytes: int = field(default_factory=half_of_memory_bytes)
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    metrics: MetricsSettings = MetricsSettings()
    api_keys: ApiKeySettings | None = None
    clouds: tuple[CloudSettings, ...] = ()
    log: LogSettings = LogSettings()
    trace: TraceSettings = TraceSettings()
    debug: DebugSettings = DebugSettings()
    lends_terminal: bool = False
    cache: CacheSettings | None = None
    max_queued_bytes: int | None = None
    resource_limits: Mapping[tuple[str, int | None], int] | None = None
    environments: EnvironmentSettings = EnvironmentSettings()
    sandbox: SandboxSettings = SandboxSettings()
    client_shared_memory: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[Path, ...]:
        """All directories with models, those of cloud storage once they were made."""
        return (*self.repositories, *self.model_directories, *self.cloud_repositories.directories)

    @property
    def place_names(self) -> tuple[str, ...]:
        """All places with models, for messages."""
        return (*map(str, (*self.repositories, *self.model_directories)), *self.cloud_repositories.urls)

    def with_local(self, directories: tuple[Path, ...]) -> Settings:
        """The same with the local directories of repositories in cloud storage."""
        return replace(self, cloud_repositories=replace(self.cloud_repositories, directories=directories))
