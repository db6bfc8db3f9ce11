"""The composition root: builds all components, starts them in order and stops them in reverse order.

It changes nothing of its process but the log, so that a server can live in a process that is not its own; what else a
command does to its process is in :mod:`pybackend.cli.process_setup`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fastapi import FastAPI

from pybackend.engine.engine import EngineState, InferenceEngine
from pybackend.environment.python_build import COST, OPTIMISED_BUILDS, is_optimised
from pybackend.errors import ServerError
from pybackend.frontend.access.api_keys import ApiKeys
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.access_rules import AccessRules
from pybackend.frontend.bound_ports import BoundPorts, bind_ports
from pybackend.frontend.calls.services import EnsembleDoor, StubCallDispatcher
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.followed_files import FollowedFiles
from pybackend.frontend.grpc.connection import connections, start_grpc
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.methods import EngineCallFactory
from pybackend.frontend.http import diagnostics_routes
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.connection import HttpConnection
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.listener import is_reserved
from pybackend.frontend.listening import LocalSocket, address_of, is_for_all, is_local, release
from pybackend.frontend.metrics.app import MetricsApp
from pybackend.frontend.remote import messages
from pybackend.frontend.remote.processes import FrontEnds, ServedPort
from pybackend.frontend.request_log import RequestLog
from pybackend.gpus import Gpus
from pybackend.inference.tensor import Buffer
from pybackend.ipc.client_regions import ClientRegions
from pybackend.observability.access_log import AccessLog
from pybackend.observability.custom_metrics import CustomMetrics
from pybackend.observability.logging import DETAIL, LOG
from pybackend.observability.tracing.tracer import Tracer, make_recorder
from pybackend.observability.unexpected import log_unexpected, repeat
from pybackend.plugins import CACHES, FURTHER_PORTS, OTHER_SERVERS, installed_apis, signature_extras
from pybackend.process.bundle import remove_unused_bundles
from pybackend.process.diagnostics_key import HEADER, DiagnosticsKey
from pybackend.process.launcher import StubLauncher
from pybackend.protocol.limits import BodyLimits
from pybackend.repository.host_settings import make_host
from pybackend.repository.layout import RepositoryScan
from pybackend.repository.remote import RemoteRepositories
from pybackend.repository.reports import StartReport, StopReport
from pybackend.repository.repository import ModelRepository
from pybackend.settings import Settings
from pybackend.threads import start_thread

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED = 0, 1

DEBUGGING_LIMIT_S = 24 * 3600.0
"""Shutdown limit while models are debugged: one may be stopped at a breakpoint. A second signal ends it at once."""


@dataclass(frozen=True)
class _Opening:
    """A port of HTTP or gRPC that shall accept connections. ``warning`` is about its address."""

    service: str
    sockets: list[socket.socket]
    start: Callable[[], Awaitable[None]]
    warning: str = ""

    async def open(self) -> None:
        await self.start()
        log.info("Started %s at %s%s", self.service, address_of(self.sockets[0]), self.warning)


class Server:
    """One server, from its settings to its exit status."""

    def __init__(
        self,
        settings: Settings,
        scan: RepositoryScan,
        launcher: StubLauncher,
        remote: RemoteRepositories,
        callers_metrics: CustomMetrics | None = None,
    ) -> None:
        self._callers_metrics = callers_metrics  # of the program whose process this is, if it is not the server's own
        self._settings = settings
        self._launcher = launcher
        self._cache = (
            None if settings.cache is None else CACHES[settings.cache.kind].load().make(settings.cache.options)
        )
        self._client_memory = ClientMemory(settings.http.memory_limit_bytes)
        host = make_host(settings, launcher, signature_extras, self._cache, self._drop_readers)
        assert host.sandbox is not None
        self._sandbox = host.sandbox
        self._repository = ModelRepository(scan, host, remote)
        self._recorder = make_recorder(settings.trace)
        self._request_log = RequestLog(AccessLog() if settings.log.access else None)
        self.engine = InferenceEngine(
            self._repository,
            server_id=settings.server_id,
            strict_readiness=settings.strict_readiness,
            regions=ClientRegions(enabled=settings.client_shared_memory, is_reserved=is_reserved),
            tracer=Tracer(settings.trace, self._recorder),
        )
        self._caller = host.caller
        self._others = None if settings.pools_file is None else OTHER_SERVERS.load()(settings.pools_file)
        catalogue = self._repository.catalogue
        self._services = StubCallDispatcher(self.engine, catalogue, self._others)
        self._router = EnsembleDoor(self.engine, catalogue, self._services)
        self.ports = BoundPorts()  # those that are bound
        self.diagnostics_key = DiagnosticsKey(launcher.bundle.parent)
        self.followed: list[FollowedFiles[Any]] = []  # the API keys, the certificates and the pools
        self._front_ends: FrontEnds | None = None
        self._http: HttpServer | None = None
        self._grpc: GrpcFrontend[InferenceEngine] | None = None
        self._metrics: HttpServer | None = None
        self._further: list[HttpServer] = []
        self._shared: list[_Opening] = []
        self._measuring: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self, on_ready: Callable[[], None], *, is_told: bool = True, takes_signals: bool = True) -> int:
        """Serve until :meth:`stop`, and return the exit status.

        ``on_ready`` is called once the models are loaded and the server is ready. ``is_told``: the reader of an error
        has read the log. ``takes_signals``: a second one ends it at once. Raises ServerError: a port is unavailable, or
        a model failed to load and the server must exit.
        """
        asyncio.get_running_loop().set_exception_handler(log_unexpected)
        if self._cache is not None:
            await self._cache.open()
        _log_machine(self._repository.host.gpus)
        rules = AccessRules(self._settings, self.engine.refusals, installed_apis(self._settings.extensions))
        sockets = self.ports = bind_ports(self._settings)
        self.followed = [*sockets.followed]
        if isinstance(rules.keys, ApiKeys):
            self.followed.append(rules.keys.files)
        if self._others is not None:
            self.followed.append(self._others.files)
        await self._listen(sockets, rules)
        if self._caller is not None:
            self._caller.attend(self._leave)
        background = [asyncio.create_task(repeat(1, self._repository.life_cycle.trim, self._launcher.tend))]
        background += [asyncio.create_task(each.follow()) for each in self.followed]
        background.append(asyncio.create_task(self._services.groupable.watch()))
        try:
            failed = await self._load(is_told=is_told)
            await self._share(take_part=failed is None and not self._stop.is_set())
            if failed is None:
                start_thread(partial(remove_unused_bundles, self._launcher.bundle), "pybackend-bundles")
                if not self._stop.is_set():
                    on_ready()
                    if self._caller is not None:
                        self._caller.serve(self.engine.control.load_of_operator, **self.ports.addresses)
                await self._stop.wait()
            status = await self._shut_down(takes_signals=takes_signals)
        finally:
            for task in background:
                task.cancel()
            self._launcher.close()
            self._sandbox.close()
            self.diagnostics_key.close()
        if failed is not None:
            raise ServerError(failed.fatal())
        return status

    def _leave(self) -> None:
        """The program is gone whose functions are served: nobody can answer any more."""
        if not self.is_stopping:
            log.error("The program with the functions has ended: the server ends, too.")
        self.stop()
        self.hurry()

    def stop(self) -> None:
        """Begin to stop. Further calls do nothing."""
        self._stop.set()

    def hurry(self) -> None:
        """Cut running requests short while the server stops."""
        self._stop_now.set()

    @property
    def is_stopping(self) -> bool:
        """True from :meth:`stop` on."""
        return self._stop.is_set()

    # Start

    async def _listen(self, sockets: BoundPorts, rules: AccessRules) -> None:
        """Open the ports before models load, so that probes find a server that is live but not ready."""
        self._request_log.open()
        limits = BodyLimits(self._settings.http.max_input_size_bytes)
        if sockets.http:
            guard = rules.http_guard()
            frontend = InferFrontend(
                self.engine,
                limits,
                self._client_memory,
                forwards=rules.http_forwards,
                guard=guard,
                fast_paths=self._settings.fast_paths,
            )
            app = make_app(frontend, rules.apis)
            key = self.diagnostics_key.value
            diagnostics_routes.add(app, frontend, self._settings.in_force, lambda: self.ports.addresses, HEADER, key)
            self.diagnostics_key.publish(address_of(sockets.http[0]))
            self._http = HttpServer(
                rules.cors.wrap(app),
                self._client_memory,
                frontend,
                request_log=self._request_log,
                guard=guard,
                cors=rules.cors,
                apis=rules.apis,
            )
            if rules.keys is not None:
                rules.keys.on_change.append(self._http.forget_heads)
            rules.warn("HTTP", sockets.http[0], secure=sockets.http_tls is not None)
        if sockets.grpc:
            calls = GrpcFrontend(
                self.engine,
                limits,
                self._client_memory,
                self._request_log,
                rules.call_policy(),
                self._settings.grpc,
                fast_paths=self._settings.fast_paths,
            )
            if rules.keys is not None:
                rules.keys.on_change.append(calls.forget_heads)
            self._grpc = calls
            rules.warn("gRPC", sockets.grpc[0], secure=sockets.grpc_tls is not None)
        if self._settings.front_ends:
            await self._start_front_ends(sockets, rules)
        await self._open_ports(sockets)
        if sockets.metrics is not None:
            self._metrics = HttpServer(self.metrics, self._client_memory, guard=rules.metrics_guard())
            rules.warn("metrics", sockets.metrics, secure=False)
            await self._metrics.start(sockets.metrics)
            log.info("Started Metrics Service at %s", address_of(sockets.metrics))
        for further, sock in sockets.further.items():
            translated = (
                FURTHER_PORTS[further.owner]
                .load()
                .application(
                    further,
                    self.make_routes(rules.http_forwards),
                    rules.http_restrictions,
                    rules.apis.group_of,
                    self._repository.catalogue.only_name,
                )
            )
            server = HttpServer(
                translated, self._client_memory, request_log=self._request_log, guard=rules.further_guard(further)
            )
            self._further.append(server)
            rules.warn(further.name, sock, secure=False)
            await server.start(sock)
            log.info("Started %s HTTPService at %s", further.name, address_of(sock))

    @cached_property
    def metrics(self) -> MetricsApp:
        """The metrics page; its figures are taken from the first use on."""
        gpus = self._repository.host.gpus
        custom = [each for each in (self._services.metrics, self._callers_metrics) if each is not None]
        calls = self._services.groupable.counts
        page = MetricsApp(
            self.engine,
            custom,
            self._cache,
            self._settings.metrics,
            gpus,
            None if self._front_ends is None else self._front_ends.counted,
            calls,
        )
        self._measuring = asyncio.create_task(page.measure())
        return page

    def make_routes(self, forwards: ForwardedHeaders | None = None) -> FastAPI:
        """Make an ASGI application with the routes of the v2 protocol; ``forwards`` are headers that become parameters."""
        limits = BodyLimits(self._settings.http.max_input_size_bytes)
        fast_paths = self._settings.fast_paths
        frontend = InferFrontend(self.engine, limits, self._client_memory, forwards=forwards, fast_paths=fast_paths)
        return make_app(frontend)

    async def _start_front_ends(self, sockets: BoundPorts, rules: AccessRules) -> None:
        """Start the processes that accept connections; this one answers what they do not answer themselves."""
        services: dict[messages.ClientProtocol, ServedPort] = {}
        if self._http is not None:
            self._http.look_after()
            serve = partial(HttpConnection, self._http)
            services["http"] = ServedPort("HTTP", sockets.http, sockets.http_tls, serve)
        if self._grpc is not None:
            self._grpc.look_after()
            services["grpc"] = ServedPort(
                "GRPC", sockets.grpc, sockets.grpc_tls, connections(self._grpc, EngineCallFactory(self._grpc))
            )
        self._front_ends = front_ends = FrontEnds(
            self._settings,
            self.engine,
            self._launcher,
            self._sandbox,
            services,
            rules.keys,
            self._request_log,
            self._client_memory,
        )
        self._repository.catalogue.ensembles.watchers.append(self._front_ends.check)
        self.engine.spread_settings = self._front_ends.spread_settings
        self.engine.takes_clients = lambda: front_ends.all_accept
        await self._front_ends.start()

    async def _open_ports(self, sockets: BoundPorts) -> None:
        """Have the connections of HTTP and gRPC accepted, here or by front ends.

        Shared ports wait until the models are loaded, because their other servers can answer until then.
        """
        settings, front_ends = self._settings, self._front_ends
        openings: list[tuple[_Opening, bool]] = []
        start: Callable[[], Awaitable[None]]
        if self._http is not None:
            start = partial(self._http.start, sockets.http[0], sockets.http_tls)
            if front_ends is not None:
                start = partial(front_ends.listen, "http")
            openings.append((_Opening("HTTPService", sockets.http, start), settings.http.reuse_port))
        if self._grpc is not None:
            start = partial(start_grpc, self._grpc, sockets.grpc[0], sockets.grpc_tls)
            if front_ends is not None:
                start = partial(front_ends.listen, "grpc")
            opening = _Opening("GRPCInferenceService", sockets.grpc, start, _warning_of_reach(sockets))
            openings.append((opening, settings.grpc.reuse_port))
        for opening, is_shared in openings:
            if is_shared and not isinstance(opening.sockets[0], LocalSocket):
                self._shared.append(opening)
            else:
                await opening.open()
        if settings.api_keys is None and (open_to_all := _open_to_all(settings, sockets)):
            names, flags = (
                " and ".join(open_to_all),
                " ".join(f"--{each.lower()}-address=127.0.0.1" for each in open_to_all),
            )
            log.warning(
                "Everybody who can reach this machine can use %s, because they need no key: %s limits that to this machine, and "
                "--api-key-file requires keys",
                names,
                flags,
            )

    async def _share(self, *, take_part: bool) -> None:
        """Open the shared ports, or let go of them."""
        for opening in self._shared:
            if take_part:
                await opening.open()
            else:
                for sock in opening.sockets:
                    release(sock)

    async def _load(self, *, is_told: bool) -> StartReport | None:
        """Load the models; returns the outcome if it must stop the server. A signal ends the wait."""
        began_s = asyncio.get_running_loop().time()
        loading = asyncio.create_task(self._repository.load_all(self._services, self._router))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            await asyncio.wait({loading})
            return None
        complete = loading.result()
        self._launcher.close_unused()  # no model needed the process that was started in advance
        took_s = asyncio.get_running_loop().time() - began_s
        report = StartReport(
            self._repository.catalogue.table(), took_s, is_told=is_told and LOG.settings.error and not LOG.has_file
        )
        fatal = not complete and self._settings.exit_on_error
        report.log(self._settings, with_summary=not fatal)
        if fatal:
            return report
        self.engine.state = EngineState.READY
        self._repository.follow()
        return None

    # End

    async def _shut_down(self, *, takes_signals: bool) -> int:
        """Become not ready, refuse connections, answer, drain, finalize; the metrics port stays open until the end."""
        loop = asyncio.get_running_loop()
        limit_s = DEBUGGING_LIMIT_S if self._settings.debug.models else self._settings.models.exit_timeout_s
        deadline_s = loop.time() + limit_s
        self.engine.state = EngineState.EXITING
        for port in self._ports():
            port.stop_listening()

        def connections() -> int:
            """Those amid a request or response; 0 while clients may keep others."""
            return 0 if self.engine.state is EngineState.EXITING else self._open_connections

        report = StopReport(
            self._repository.life_cycle.unfinished, connections, deadline_s, takes_signals=takes_signals
        )
        reporting = asyncio.create_task(report.run())
        try:
            return await self._drain_or_hurry(deadline_s)
        finally:
            reporting.cancel()

    async def _drain_or_hurry(self, deadline_s: float) -> int:
        """Drain until the deadline, or at once after a second signal; returns the exit status."""
        drain = asyncio.create_task(self._drain(deadline_s))
        hurry = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not drain.done():
            drain.cancel()
            await asyncio.wait({drain})
            await self._drain(asyncio.get_running_loop().time())
            return EXIT_FAILED
        if not drain.result():
            log.error("Exit timeout expired. Exiting immediately.")
            return EXIT_FAILED
        return EXIT_OK

    def _drop_readers(self, is_part: Callable[[Buffer], bool], nbytes: int, then: Callable[[], None]) -> bool:
        """Memory of a model's process is short: disconnect slow clients, here or of front ends."""
        if self._client_memory.drop_readers(is_part, nbytes, then):
            return True
        return self._front_ends is not None and self._front_ends.drop_readers(is_part, nbytes, then)

    @property
    def _open_connections(self) -> int:
        if self._front_ends is not None:
            return self._front_ends.connection_count + sum(port.connection_count for port in self._further)
        return sum(port.connection_count for port in self._ports())

    def _ports(self) -> list[HttpServer | GrpcFrontend[InferenceEngine] | FrontEnds]:
        return [port for port in (self._front_ends, self._http, self._grpc, *self._further) if port is not None]

    async def _let_clients_go(self, deadline_s: float) -> None:
        """Answer what still comes on connections that clients keep, until all know that theirs ends, for the grace at most.

        A client that is told with an answer that its connection ends loses nothing; closing it between two answers could cross with
        its next request.
        """
        if self.engine.state is EngineState.CLOSED:
            return
        left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        grace_s = min(self._settings.exit_keepalive_s, left_s / 2)  # the models need time, too
        if grace_s and self._open_connections and not all(port.is_quiet for port in self._ports()):
            text = "Clients have %d open connections: what still comes is answered, for %g s at most."
            log.info(text, self._open_connections, grace_s, extra=DETAIL)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(port.quiet() for port in self._ports()))
        self.engine.state = EngineState.CLOSED
        for port in self._ports():
            port.close_idle()
        log.info("Waiting for in-flight requests to complete.", extra=DETAIL)

    async def _drain(self, deadline_s: float) -> bool:
        await self._let_clients_go(deadline_s)
        answered = await self._repository.unload_all(deadline_s)
        if self._others is not None:
            await self._others.close()
        sent = all(await asyncio.gather(*(port.stop(deadline_s) for port in self._ports())))
        if self._metrics is not None:
            await self._metrics.stop(asyncio.get_running_loop().time())
        if self._measuring is not None:
            self._measuring.cancel()
        if self._cache is not None:
            await self._cache.close()
        self._request_log.close()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)
        return answered and sent


def _log_machine(gpus: Gpus) -> None:
    """Say what of this machine changes how fast models run."""
    if not is_optimised():
        log.info("this CPython was built without optimisations: %s; %s", COST, OPTIMISED_BUILDS, extra=DETAIL)
    if gpus.found:
        log.info("%s", gpus.summary)
    elif gpus.is_fault:
        log.warning("models run without a GPU. %s", gpus.reason)


def _open_to_all(settings: Settings, sockets: BoundPorts) -> list[str]:
    """The services on all addresses that nothing but API keys could restrict."""
    services = (("HTTP", settings.http, sockets.http), ("gRPC", settings.grpc, sockets.grpc))
    return [
        name
        for name, service, bound in services
        if bound and is_for_all(bound[0]) and not (service.restrictions or (service.tls and service.tls.mutual))
    ]


def _warning_of_reach(sockets: BoundPorts) -> str:
    """What the operator may not expect: the address of HTTP does not hold for gRPC."""
    if not (sockets.http and sockets.grpc and is_local(sockets.http[0]) and is_for_all(sockets.grpc[0])):
        return ""
    return (
        ", which other machines can reach, unlike HTTP. --http-address does not apply to gRPC: "
        "--grpc-address=127.0.0.1 limits it to this machine"
    )
