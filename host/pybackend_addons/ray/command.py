"""``pybackend serve --on=ray`` and ``pybackend status --on=ray``."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pybackend.errors import ServerError
from pybackend.settings import KeyExemption
from pybackend_addons.ray.cluster import APPLICATION, Cluster, Pool
from pybackend_wire.installation import install_command

_HOME = Path.home() / ".ray" / "pybackend"
_ADDRESS = _HOME / "address"
"""Where a local cluster listens, for ``status``."""

_LONGEST_HOME = 38
"""Ray makes sockets below its directory, whose names add up to 107 characters at most."""

_LOOPBACK = "127.0.0.1"
_LOCAL = (_LOOPBACK, "::1", "localhost")
_AUTHENTICATION = "RAY_AUTH_MODE"
_JOIN = "RAY_ADDRESS"
_STATUS_S = 60.0
_OWN_ERROR = re.compile(r"^pybackend\.[\w.]+: (.*)", re.MULTILINE | re.DOTALL)


def serve_on_ray(cluster: Cluster) -> int:
    """Run the application until a signal arrives, and return the exit status. Raises ServerError if it cannot start."""
    _require_ray()
    if cluster.updates:
        return _update(cluster)
    with _cluster(cluster) as (is_local, about):
        cluster = _with_address(cluster, is_local=is_local)
        _say(about)
        places = _places(_least(cluster), _whole_machines())
        if places < len(_least(cluster)):
            _say(
                f"WARNING: the machines have room for {places} of {len(_least(cluster))} replicas: this waits until there is more, or ends "
                "with Ctrl-C"
            )
        _say(_about_entrance(cluster))
        began_s = time.monotonic()
        with _application(cluster):
            wait_for_signal = ending_signals()
            _say(
                f"Ready after {time.monotonic() - began_s:.1f} s: {_numbers(cluster)}. "
                "`pybackend status --on=ray` shows them; Ctrl-C ends them"
            )
            wait_for_signal()
            _say("Ending: replicas answer the requests that they have")
    return 0


def ending_signals() -> Callable[[], None]:
    """A function that waits until SIGINT or SIGTERM comes, or has come since this call.

    The kernel may give a signal to any of Ray's threads. That wakes none that waits for a lock, but Python then writes
    a byte to this pipe.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)

    def wait() -> None:
        os.read(reading, 1)

    return wait


def show_status() -> dict[str, Any]:
    """The application's state, as its coordinator says, and the machines of the cluster.

    Raises ServerError without one.
    """
    with redirect_stdout(sys.stderr):  # what Ray has to say, such as that a machine died: JSON must stay JSON
        return _asked_status()


def _asked_status() -> dict[str, Any]:
    _require_ray()
    address = _running_address()
    _prepare(address)
    import ray
    from ray import serve
    from ray.serve.exceptions import RayServeException

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    _connect(address, shows_log=False)
    try:
        handle = serve.get_deployment_handle("Coordinator", app_name=APPLICATION, _check_exists=False)
        found: dict[str, Any] = handle.status.remote().result(timeout_s=_STATUS_S)
        machines = [
            {"node": node["NodeID"], "address": node["NodeManagerAddress"], "alive": node["Alive"], **_resources(node)}
            for node in ray.nodes()
        ]
    except (RayServeException, ray.exceptions.RayError, TimeoutError) as error:
        raise ServerError(
            f"the cluster at {address} has no application '{APPLICATION}' that answers: {error}"
        ) from None
    finally:
        ray.shutdown()
    return {**found, "machines": machines}


def _update(cluster: Cluster) -> int:
    """Change the application that runs, and return when that has been done."""
    address = _running_address()
    _prepare(address)
    import ray
    from ray import serve
    from ray._private.state import available_resources_per_node

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    _connect(address, shows_log=False)
    try:
        running = serve.status().applications.get(APPLICATION)
        if running is None:
            raise ServerError(f"no application runs in the cluster at {address}: start one without --update")
        present = sum(
            each.replica_states.get("RUNNING", 0)
            for name, each in running.deployments.items()
            if name.startswith("Replica")
        )
        wanted = [*_least(cluster), *cluster.every_pool]
        places = min(
            _places(wanted, available_resources_per_node().values()) + present, _places(wanted, _whole_machines())
        )
        cluster = replace(_with_address(cluster, is_local=address.startswith("127.")), has_room=places >= len(wanted))
        if not cluster.has_room:
            more = "one" if not cluster.pools else "one for each pool"
            _say(
                f"WARNING: the machines have room for {places} replicas, and an update needs {more} more than {len(_least(cluster))}: "
                "each is stopped before the next one starts"
            )
        _say(_about_entrance(cluster))
        began_s = time.monotonic()
        try:
            _deploy(cluster)
        except ServerError as error:
            raise ServerError(
                f"{error}. Replicas from before the update serve on: update again, with what was or with what works"
            ) from None
        _say(f"Updated after {time.monotonic() - began_s:.1f} s: {_numbers(cluster)}")
    finally:
        ray.shutdown()
    return 0


def _running_address() -> str:
    """Where the cluster with the application is. Raises ServerError if none is known."""
    address = os.environ.get(_JOIN, "")
    with suppress(OSError):
        address = address or _ADDRESS.read_text(encoding="ascii")
    if not address:
        raise ServerError(
            f"no application of this user runs on this machine. Start one with `pybackend serve DIRECTORY --on=ray`, or name its "
            f"cluster: {_JOIN}=HOST:PORT"
        )
    return address


def _with_address(cluster: Cluster, *, is_local: bool) -> Cluster:
    return replace(cluster, address=cluster.address or (_LOOPBACK if is_local else "0.0.0.0"))  # noqa: S104  said aloud


def _least(cluster: Cluster) -> list[Pool]:
    """For each replica that there must be, its pool."""
    return [pool for pool in cluster.every_pool for _ in range(pool.min_replicas)]


def _numbers(cluster: Cluster) -> str:
    most = sum(pool.max_replicas for pool in cluster.every_pool)
    return f"{len(_least(cluster))} of at most {most} replicas"


def _places(replicas: Iterable[Pool], machines: Iterable[Mapping[str, float]]) -> int:
    """How many of these replicas, given by their pools, fit into the resources of machines."""
    free = [dict(machine) for machine in machines]
    places = 0
    for pool in replicas:
        for machine in free:
            if all(machine.get(name, 0.0) >= number for name, number in pool.resources.items()):
                for name, number in pool.resources.items():
                    machine[name] -= number
                places += 1
                break
    return places


def _whole_machines() -> list[Mapping[str, float]]:
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _resources(node: Any) -> dict[str, Any]:
    resources = node.get("Resources", {})
    is_first = "node:__internal_head__" in resources
    return {"cpus": resources.get("CPU", 0.0), "gpus": resources.get("GPU", 0.0), "first": is_first}


def _require_ray() -> None:
    if find_spec("ray") is None or find_spec("aiohttp") is None:
        raise ServerError(f"Ray is not installed: {install_command('ray')}")


def _say(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


def _about_entrance(cluster: Cluster) -> str:
    http, grpc = ("" if tls is None else " with TLS" for tls in (cluster.http_tls, cluster.grpc_tls))
    ports = f"HTTP {cluster.http_port}{http}, gRPC {cluster.grpc_port}{grpc}, metrics {cluster.metrics_port}"
    text = f"The entrance listens on {cluster.address}: {ports}"
    if cluster.address in _LOCAL:
        return text
    if cluster.api_keys is None:
        return (
            f"{text}. WARNING: everybody who reaches these ports may call everything; --api-key-file demands keys, and "
            "--http-address=127.0.0.1 limits callers to their machine"
        )
    is_open = not (http and grpc and KeyExemption.METRICS in cluster.api_keys.exempt)
    return f"{text}. WARNING: API keys cross the network in plain text where a port has no TLS" if is_open else text


def _prepare(address: str) -> None:
    """Set the variables that Ray reads when it is imported, for a cluster at this address."""
    mode = os.environ.setdefault(_AUTHENTICATION, "token")
    if mode.lower() != "token":
        raise ServerError(
            f"{_AUTHENTICATION}={mode}: without tokens, everybody who reaches Ray's ports can run programs on all machines of the "
            f"cluster. Leave the variable out, or set it to token"
        )
    if address.startswith("127."):
        # Nodes have the address of the loopback interface, and Ray listens there only.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_enable_metrics_collection", "0")  # its page demands no token
    logging.getLogger("ray").setLevel(logging.WARNING)


@contextmanager
def _cluster(cluster: Cluster) -> Iterator[tuple[bool, str]]:
    """A connection with the cluster of the environment, or a local one for as long as this lasts."""
    joined = os.environ.get(_JOIN, "")
    _prepare(joined or _LOOPBACK)
    import ray

    own = ""
    if joined:
        _connect(joined, shows_log=True)
        about = _about_cluster(joined, [node for node in ray.nodes() if node["Alive"]])
    else:
        about = _start_local(cluster)
        own = str(ray.get_runtime_context().gcs_address)
        _ADDRESS.write_text(own, encoding="ascii")
    try:
        yield not joined, about
    finally:
        ray.shutdown()
        with suppress(OSError):
            if own and _ADDRESS.read_text(encoding="ascii") == own:  # not that of a later one
                _ADDRESS.unlink()


def _about_cluster(address: str, nodes: Sequence[Any]) -> str:
    count = len(nodes)
    text = f"Ray: joined the cluster at {address}, with {count} {'machine' if count == 1 else 'machines'}"
    if all(node["NodeManagerAddress"] in _LOCAL for node in nodes):
        return text
    ports = "; ".join(
        f"{node['NodeManagerAddress']} {node['NodeManagerPort']}, {node['ObjectManagerPort']}" for node in nodes
    )
    return (
        f"{text}. WARNING: its ports have no TLS, and who has its token can run programs on all machines: let a firewall keep others from {address}, "
        f"from {ports}, and from all further ports of these machines but the entrance's"
    )


def _connect(address: str, *, shows_log: bool) -> None:
    import ray

    try:
        ray.init(address=address, log_to_driver=shows_log, logging_level=logging.WARNING)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise ServerError(
            f"cannot join the cluster at {address}: {str(error).splitlines()[0]}. The token of the cluster must be in ~/.ray/auth_token, or "
            "in the file that RAY_AUTH_TOKEN_PATH names"
        ) from None


def _start_local(cluster: Cluster) -> str:
    import ray

    def most(resource: str) -> int:
        """With one replica more in each pool, for updates."""
        return math.ceil(sum((pool.max_replicas + 1) * pool.resources.get(resource, 0) for pool in cluster.every_pool))

    _HOME.mkdir(mode=0o700, parents=True, exist_ok=True)
    fits = len(str(_HOME)) <= _LONGEST_HOME
    ray.init(
        address="local",
        num_cpus=max(1, most("CPU")),
        num_gpus=most("GPU") or None,
        include_dashboard=False,
        logging_level=logging.WARNING,
        **({"_temp_dir": str(_HOME)} if fits else {}),
    )
    text = f"Ray: started a local cluster on {_LOOPBACK}, without dashboard; it ends with this command"
    return (
        text
        if fits
        else f"{text}. WARNING: {_HOME} is too long for Ray's sockets, which lie below /tmp, where models may write"
    )


@contextmanager
def _application(cluster: Cluster) -> Iterator[None]:
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled", logging_config=_quiet())
    if APPLICATION in serve.status().applications:
        raise ServerError("an application runs in this cluster already: --update changes it")
    try:
        _deploy(cluster)
        yield
    finally:
        with suppress(Exception):  # the cluster may have gone
            serve.delete(APPLICATION)


def _deploy(cluster: Cluster) -> None:
    """Return when the application runs with these settings. Raises ServerError if it cannot."""
    from ray import serve

    from pybackend_addons.ray.application import application

    try:
        serve.run(application(cluster), name=APPLICATION, logging_config=_quiet())
    except RuntimeError as error:
        status = serve.status().applications.get(APPLICATION)
        reason = (
            error
            if status is None
            else "; ".join(_reason(each.message) for each in status.deployments.values() if each.message)
            or status.message
        )
        raise ServerError(f"the application cannot start: {reason}") from None


def _reason(message: str) -> str:
    """The error of ours in what Ray Serve says about a deployment, without the calls that led to it."""
    found = _OWN_ERROR.search(message)
    return found[1].strip() if found else message


def _quiet() -> Any:
    from ray.serve.schema import LoggingConfig

    return LoggingConfig(log_level="WARNING", enable_access_log=False)
