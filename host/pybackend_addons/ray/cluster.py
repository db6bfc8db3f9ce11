"""What is the same for all replicas of an application: their settings, and what they, the coordinator and the entrances tell each other."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pybackend.errors import ServerError
from pybackend.pools import DEFAULT_POOL
from pybackend.settings import ApiKeySettings, KeyExemption, TlsSettings

APPLICATION = "pybackend"
"""The name of the application in Ray Serve."""

KEY_HEADER = "x-api-key"
"""The header with the key that replicas and the coordinator demand. The entrances write it into each request."""

OWNED_FLAGS = {
    "http-address": "address",
    "http-port": "http_port",
    "grpc-address": "address",
    "grpc-port": "grpc_port",
    "metrics-address": "address",
    "metrics-port": "metrics_port",
    **{
        f"{service}-{part}": f"{service}_tls"
        for service in ("http", "grpc")
        for part in ("use-ssl", "use-ssl-mutual", "server-cert", "server-key", "root-cert")
    },
    "api-key-file": "api_keys",
    "api-key-exempt": "api_keys",
}
"""Flags that are the entrance's, and the settings that they become."""

_REFUSED = {
    "pools-file": "replicas get theirs: write --pool=NAME,model=MODEL",
    "allow-client-shm": "a load balancer may send each request to another machine, which has no part of that memory",
    "http-restricted-api": "the entrance knows API keys, but no groups of calls: put a proxy that checks headers before it",
    "grpc-restricted-protocol": "the entrance knows API keys, but no groups of calls: put a proxy that checks headers before it",
    "console": "it shows one server: run `pybackend console --url=URL`",
    "reuse-http-port": "each replica has another port",
    "reuse-grpc-port": "each replica has another port",
    "allow-http": "the entrance needs both protocols",
    "allow-grpc": "the entrance needs both protocols",
    "allow-metrics": "the coordinator reads the metrics of all replicas",
    "allow-sagemaker": "these clouds start one server for each machine",
    "allow-vertex-ai": "these clouds start one server for each machine",
    "debug": "a debugger needs one process to attach to: serve on one machine",
}


_Files = TypeVar("_Files", TlsSettings, ApiKeySettings)


_POOL_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")

_OF_ONE_PROCESS = {"arguments", "directory", "updates", "key"}
"""Settings that a configuration has not, or in another form."""


@dataclass(frozen=True)
class Pool:
    """Models with their replicas.

    Attributes:
        min_replicas: there are always this many.
        max_replicas: there are never more.
        num_cpus: that Ray reserves for a replica.
        num_gpus: likewise.
        memory_bytes: likewise; 0 for none.
    """

    name: str
    models: tuple[str, ...] = ()
    min_replicas: int = 1
    max_replicas: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory_bytes: int = 0

    @property
    def resources(self) -> dict[str, float]:
        """The resources of a replica, by Ray's names."""
        found = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory_bytes)}
        return {name: number for name, number in found.items() if number}


@dataclass(frozen=True)
class Cluster:
    """The settings of one application.

    Attributes:
        arguments: of ``pybackend serve`` for each replica: the repositories, and flags.
        min_replicas: of the default pool, as are the resources below.
        max_replicas: likewise.
        pools: the others.
        target_ongoing_requests: of one replica, waiting and running; above it, replicas are added.
        target_waiting: seconds that requests wait for each second of computing; above it, replicas are added, too. 0:
            it does not matter.
        scale_down_s: replicas are removed if fewer have sufficed for this long.
        address: where the entrances listen.
        http_tls: the certificates of the entrance's port for HTTP, in files of each machine with an entrance; None for
            plain HTTP.
        grpc_tls: likewise for gRPC.
        api_keys: of clients, in such a file; None if clients need none.
        entrances: the number of machines with an entrance.
        exit_timeout_s: how long a replica that must go may work on the requests that it has.
        has_room: an update starts a replica before it stops one: there is room for one more.
        directory: where servers start, if the machine has it.
        updates: of the command: change the application that runs, and start none.
        key: the secret between entrances, coordinator and replicas; see :func:`keyed`.
    """

    arguments: tuple[str, ...]
    min_replicas: int = 1
    max_replicas: int = 1
    pools: tuple[Pool, ...] = ()
    target_ongoing_requests: float = 16.0
    target_waiting: float = 0.0
    scale_down_s: float = 60.0
    address: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    http_tls: TlsSettings | None = None
    grpc_tls: TlsSettings | None = None
    api_keys: ApiKeySettings | None = None
    entrances: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory_bytes: int = 0
    exit_timeout_s: int = 30
    has_room: bool = True
    directory: str = "/"
    updates: bool = False
    key: str = field(default="", repr=False)

    @property
    def every_pool(self) -> tuple[Pool, ...]:
        """The default pool first."""
        own = (self.min_replicas, self.max_replicas, self.num_cpus, self.num_gpus, self.memory_bytes)
        return (Pool(DEFAULT_POOL, (), *own), *self.pools)

    @property
    def pool_of(self) -> dict[str, str]:
        """The pool of each model that is not in the default one."""
        return {model: pool.name for pool in self.pools for model in pool.models}

    @property
    def seats(self) -> dict[str, range]:
        """The numbers of the servers that an entrance has room for in each pool: replicas, and those that replace them."""
        found, first = {}, 1
        for pool in self.every_pool:
            found[pool.name] = range(first, first + 2 * pool.max_replicas + 4)
            first = found[pool.name].stop
        return found

    @property
    def release(self) -> str:
        """The same for replicas that start with the same repositories, flags and pools."""
        pools = (f"{pool.name} {' '.join(pool.models)}" for pool in self.pools)
        return hashlib.sha256("\0".join((*self.arguments, *pools)).encode()).hexdigest()[:8]


def keyed(cluster: Cluster) -> Cluster:
    """The settings with the key, in a process of the cluster.

    It comes from Ray's token, so that it outlives updates.
    """
    from ray._raylet import AuthenticationTokenLoader

    token = AuthenticationTokenLoader.instance().get_raw_token(ignore_auth_mode=True)
    return replace(cluster, key=hmac.new(token.encode(), b"pybackend", "sha256").hexdigest())


def cluster_of(repositories: Sequence[str], arguments: Sequence[str] = (), **settings: Any) -> Cluster:
    """The settings of an application.

    Raises ServerError if they contradict each other, or a flag cannot be used here.
    """
    for word in arguments:
        refuse_flag(word.removeprefix("--").partition("=")[0])
    known = set(Cluster.__dataclass_fields__) - {"arguments", "updates", "key"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ServerError(
            f"'{unknown[0]}' is no setting of an application. The settings are {', '.join(sorted(known))}"
        )
    if not repositories:
        raise ServerError("no model repository is named: write model_repository='/path/to/models'")
    places = [place if "://" in place else os.path.abspath(place) for place in repositories]
    flags = [f"--model-repository={place}" for place in places]
    for name, kind in (("http_tls", TlsSettings), ("grpc_tls", TlsSettings), ("api_keys", ApiKeySettings)):
        settings[name] = _with_paths(name, kind, settings.get(name))
    settings["pools"] = tuple(map(_pool, settings.get("pools", ())))
    found = Cluster(arguments=(*flags, *arguments), **settings)
    for pool in found.every_pool:
        if not 1 <= pool.min_replicas <= pool.max_replicas:
            raise ServerError(
                f"{pool.min_replicas} to {pool.max_replicas} replicas are no range: the first number is 1 or more, the second no less"
            )
    _check_pools(found)
    if found.target_ongoing_requests <= 0:
        raise ServerError(f"target_ongoing_requests is {found.target_ongoing_requests}: write a number above 0")
    if found.target_waiting < 0:
        raise ServerError(
            f"target_waiting is {found.target_waiting}: write a number above 0, or 0 if it does not matter"
        )
    return found


def _pool(given: Pool | Mapping[str, Any]) -> Pool:
    """A pool of the settings. A configuration of Ray Serve gives it as a mapping."""
    try:
        found = given if isinstance(given, Pool) else Pool(**given)
    except TypeError:
        known = ", ".join(Pool.__dataclass_fields__)
        raise ServerError(f"a pool has the fields {known}, and one has {', '.join(given)}") from None  # type: ignore[arg-type]
    return replace(found, models=tuple(found.models))


def _check_pools(cluster: Cluster) -> None:
    names = [pool.name for pool in cluster.every_pool]
    models = [model for pool in cluster.pools for model in pool.models]
    for pool in cluster.pools:
        if not _POOL_NAME.fullmatch(pool.name) or names.count(pool.name) > 1:
            raise ServerError(
                f"'{pool.name}' cannot name a pool: write lower-case letters, digits and _, another name for each, and not {DEFAULT_POOL}"
            )
        if not pool.models:
            raise ServerError(f"pool '{pool.name}' names no model: write --pool={pool.name},model=MODEL")
        if blank := next((model for model in pool.models if model.split() != [model]), None):
            raise ServerError(f"'{blank}' cannot be in a pool: the entrance knows names without blanks only")
        twice = [model for model in pool.models if models.count(model) > 1]
        if twice:
            raise ServerError(f"model '{twice[0]}' is named twice: each model is in one pool")
    if cluster.pools and any(word.startswith("--model-namespacing") for word in cluster.arguments):
        raise ServerError("--pool names models without namespaces: leave out --model-namespacing")


def _with_paths(setting: str, kind: type[_Files], given: _Files | Mapping[str, Any] | None) -> _Files | None:
    """Such a setting with absolute paths. A configuration of Ray Serve gives it as a mapping."""
    if given is None:
        return None
    fields = dict(given) if isinstance(given, Mapping) else dict(vars(given))
    for name, value in fields.items():
        if name == "exempt":
            fields[name] = frozenset(map(KeyExemption, value))
        elif isinstance(value, str | Path):
            fields[name] = Path(value).absolute()
    try:
        return kind(**fields)
    except TypeError:
        known = ", ".join(kind.__dataclass_fields__)
        raise ServerError(f"{setting} has the fields {known}, and {', '.join(fields) or 'none'} was given") from None


def _plain(value: Any) -> Any:
    """A setting as documents have it."""
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Pool):
        fields = Pool.__dataclass_fields__.values()
        return {each.name: _plain(vars(value)[each.name]) for each in fields if vars(value)[each.name] != each.default}
    if isinstance(value, TlsSettings | ApiKeySettings):
        return {name: _plain(each) for name, each in vars(value).items() if each is not None}
    if isinstance(value, frozenset):
        return sorted(each.value for each in value)
    return str(value) if isinstance(value, Path) else value


def serve_config(cluster: Cluster) -> dict[str, Any]:
    """The configuration of Ray Serve, for ``serve deploy``, that runs such an application.

    It imports nothing of Ray.
    """
    prefix = "--model-repository="
    own = {
        name: _plain(getattr(cluster, name))
        for name, described in Cluster.__dataclass_fields__.items()
        if name not in _OF_ONE_PROCESS and getattr(cluster, name) != described.default
    }
    args = {
        "model_repository": [word.removeprefix(prefix) for word in cluster.arguments if word.startswith(prefix)],
        **own,
        "arguments": [word for word in cluster.arguments if not word.startswith(prefix)],
    }
    return {
        "proxy_location": "Disabled",
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        "applications": [
            {
                "name": APPLICATION,
                "import_path": "pybackend_addons.ray:build_from_config",
                "args": {name: value for name, value in args.items() if value != []},
            }
        ],
    }


def refuse_flag(name: str) -> None:
    """Raise ServerError for a flag of ``pybackend serve`` that replicas cannot have."""
    if name in OWNED_FLAGS:
        raise ServerError(f"--{name} is the entrance's, not the replicas': write {OWNED_FLAGS[name]}=... instead")
    if name in _REFUSED:
        raise ServerError(f"--{name} cannot be used with --on=ray: {_REFUSED[name]}")


@dataclass(frozen=True)
class Change:
    """A call that each replica must make at itself, such as the load of a model.

    Attributes:
        generation: their number; each replica makes them in this order.
        release: that was wanted when the call came.
        key: a later change with the same key takes the place of this one.
        path: where it is posted.
        body: the JSON document.
        pool: whose replicas must make it; None for all.
    """

    generation: int
    release: str
    key: str
    path: str
    body: Mapping[str, Any]
    pool: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The answer of a replica to a change."""

    generation: int
    status: int
    body: bytes


@dataclass(frozen=True)
class Report:
    """The state of a replica, as it tells the coordinator.

    Attributes:
        name: the replica's, as Ray Serve has it.
        node: of the machine, as Ray has it.
        address: of the server, for the ports.
        generation: of the newest change that it has made, or tried.
        pool: the name of its pool.
        roster: the number of the newest state of the others that its server knows.
        seat: that the coordinator gave it; 0 if none.
        ready: the server says that all of its models are.
        sequences: models with a sequence batcher.
        version: of pybackend.
        release: of the settings with which it was started.
        outcomes: of the changes that it has made, or tried, since the report before.
    """

    name: str
    node: str
    address: str
    http_port: int
    grpc_port: int
    metrics_port: int
    version: str
    release: str = ""
    pool: str = DEFAULT_POOL
    generation: int = 0
    roster: int = 0
    seat: int = 0
    ready: bool = False
    sequences: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class News:
    """The coordinator's answer to a replica.

    Attributes:
        changes: that it must make.
        roster: the number of the state of all replicas.
        servers: the addresses of the servers of each pool; empty without pools.
    """

    changes: tuple[Change, ...]
    roster: int
    servers: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Roster:
    """The replicas, for an entrance.

    Attributes:
        number: of this state; a later one is greater.
        complete: False soon after the coordinator has started: replicas that it does not know yet may be there.
        places: the replica of each seat that has one.
        leaving: seats of replicas that get no new requests.
        sequences: models with a sequence batcher.
        coordinator: address and ports of the coordinator: HTTP, gRPC.
    """

    number: int
    complete: bool
    places: Mapping[int, Report]
    leaving: frozenset[int]
    sequences: frozenset[str]
    coordinator: tuple[str, int, int]

    def after(self, before: Roster | None) -> Roster:
        """The same with the replicas of an earlier state that this one does not name."""
        if before is None:
            return self
        others = {seat: report for seat, report in before.places.items() if seat not in self.places}
        return replace(
            self,
            places={**others, **self.places},
            leaving=self.leaving | (before.leaving & others.keys()),
            sequences=self.sequences | before.sequences,
        )


def follower() -> list[str]:
    """The beginning of a command whose process ends with this one."""
    return [sys.executable, "-I", "-S", "-B", str(Path(__file__).with_name("follower_program.py")), str(os.getpid())]


def private_directory(purpose: str) -> Path:
    """A new directory for one process below ``~/.ray``, where no model may read."""
    import tempfile

    home = Path.home() / ".ray" / "pybackend"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=home))
