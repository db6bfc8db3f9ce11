"""``Server``: the owner of a server in the caller's process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self

from pybackend import __version__
from pybackend.frontend.http.app import served_extensions
from pybackend.in_process.control import LogControl, TraceControl
from pybackend.in_process.errors import InvalidArgumentError, UnavailableError, UnsupportedError, WrongTypeError
from pybackend.in_process.life import Life
from pybackend.in_process.metrics import MetricFormat
from pybackend.in_process.model import Model, statistics_of
from pybackend.in_process.mounted import MountedApp, page_text
from pybackend.in_process.options import Options
from pybackend.repository.entry import ModelStatus


class Server:
    """Serves the models of a repository inside this process: ``with Server(model_repository=...) as server``.

    All methods may be called from any thread. They block; in a coroutine use :meth:`Model.async_infer`, ``async with``,
    and ``asyncio.to_thread`` for the others.
    """

    def __init__(self, options: Options | None = None, **fields: Any) -> None:
        if options is None:
            try:
                options = Options(**fields)
            except TypeError as error:
                raise WrongTypeError(str(error).replace("Options.__init__()", "Server()")) from None
        elif not isinstance(options, Options):
            raise WrongTypeError(f"pass Options, or their fields by name, not {type(options).__name__}")
        elif fields:
            raise InvalidArgumentError("pass Options, or their fields, but not both")
        self.options = options
        self._life = life = Life(options)
        self.log = LogControl(life)  # the settings of its log
        self.traces = TraceControl(life)  # the settings of traces

    # Life

    def start(
        self, wait_until_ready: bool = False, polling_interval: float = 0.1, timeout: float | None = None
    ) -> Self:
        """Start, wait until the models are loaded, and return this server.

        With ``wait_until_ready``, also until every one is ready, at most ``timeout`` seconds. Raises TritonError: it
        runs already, or cannot start.
        """
        self._life.start()
        if wait_until_ready and not _reached(self.ready, timeout, polling_interval):
            self.stop()
            raise UnavailableError(f"the server was not ready after {timeout} s")
        return self

    def stop(self) -> None:
        """Answer the running requests, stop the models, and wait for their end; Ctrl-C meanwhile cuts requests short.

        On a server that is not started this does nothing.
        """
        self._life.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    # The models

    def live(self) -> bool:
        """True while it runs. Raises NotStartedError: it is not started, or stopped."""
        return bool(self._life.host)

    def ready(self) -> bool:
        """Whether, if readiness is strict, every model is ready.

        Raises NotStartedError: it is not started, or stopped.
        """
        return bool(self._life.ask(self._life.host.server.engine.is_ready))

    def metadata(self) -> dict[str, Any]:
        """Its name, version and extensions, as ``GET /v2`` has them."""
        host = self._life.host

        async def asked() -> dict[str, Any]:
            return {
                "name": host.server.engine.server_id,
                "version": __version__,
                "extensions": served_extensions(await host.routes()),
            }

        return self._life.ask(asked)

    def model(self, name: str, version: int = -1) -> Model:
        """A model by name. Whether it exists is found out when it is used."""
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a model's name is a string, not {type(name).__name__}")
        if type(version) is not int or version < -1:
            raise InvalidArgumentError(f"a model's version is a number, or -1 for the newest, not {version!r}")
        return Model(self._life, name, version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """The models of the repositories by name and version; -1 for those that were never loaded."""
        rows = self._index(only_ready=exclude_not_ready)
        return ModelDictionary(
            self._life,
            (
                Model(
                    self._life,
                    row.full_name,
                    int(row.version) if row.version.isdecimal() else -1,
                    row.state,
                    row.reason,
                )
                for row in rows
            ),
        )

    def _index(self, *, only_ready: bool = False) -> list[ModelStatus]:
        return self._life.ask(partial(self._life.host.server.engine.control.read_index, only_ready=only_ready))

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """The statistics of ready versions, as ``GET /v2/models/stats`` has them; ``""`` for all."""
        return statistics_of(self._life, name, version)

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """The metrics page, in the text format of Prometheus."""
        del metric_format  # there is one
        if not self.options.metrics:
            raise UnsupportedError("the server was made with metrics=False")
        return self._life.ask(partial(page_text, self._life.host.server.metrics, "/metrics"))

    # Control

    def load(self, model_name: str, parameters: Mapping[str, str | bytes] | None = None) -> Model:
        """Load a model, or bring it up to date, and wait until it is ready.

        ``parameters``: ``config`` has the JSON of a configuration, and ``file:<path>`` the bytes of a file.
        """
        given = dict(parameters or {})
        config = given.pop("config", None)
        if isinstance(config, bytes):
            config = config.decode("utf-8", "replace")
        for name, content in given.items():
            if not isinstance(content, bytes):
                raise InvalidArgumentError(f"load parameter '{name}' is of type {type(content).__name__}: pass bytes")
        files = {name: content for name, content in given.items() if isinstance(content, bytes)}
        self._life.ask(partial(self._life.host.server.engine.control.load, model_name, config, files, of_client=True))
        return Model(self._life, model_name)

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> None:
        """Begin to unload a model, and wait for its end with ``wait_until_unloaded``, at most ``timeout`` seconds."""
        name = model.name if isinstance(model, Model) else model
        control = self._life.host.server.engine.control
        self._life.ask(partial(control.unload, name, unload_dependents=unload_dependents))
        if wait_until_unloaded and not _reached(
            lambda: all(row.state in _GONE for row in self._index() if row.full_name == name), timeout, polling_interval
        ):
            raise UnavailableError(f"model '{name}' was not unloaded after {timeout} s")

    # Doors

    def asgi(self) -> MountedApp:
        """The routes of the v2 protocol as an ASGI application: ``app.mount("/v2", server.asgi())``."""
        return MountedApp(self._life)

    @property
    def http_address(self) -> str:
        """``host:port`` of the HTTP port, ``""`` if there is none."""
        return self._life.host.server.ports.addresses["http"]

    @property
    def grpc_address(self) -> str:
        """``host:port`` of the gRPC port, ``""`` if there is none."""
        return self._life.host.server.ports.addresses["grpc"]

    @property
    def metrics_address(self) -> str:
        """``host:port`` of the metrics port, ``""`` if there is none."""
        return self._life.host.server.ports.addresses["metrics"]


class ModelDictionary(dict[tuple[str, int], Model]):
    """Models by name and version. A name alone, or with version -1, also finds the newest that serves."""

    def __init__(self, life: Life, models: Iterable[Model]) -> None:
        super().__init__(((model.name, model.version), model) for model in models)
        self._life = life

    def __missing__(self, key: str | tuple[str, int]) -> Model:
        name, version = (key, -1) if isinstance(key, str) else key
        found = [model for model in self.values() if version == -1 and model.name == name]
        if not found:
            raise KeyError(key)
        newest = max(found, key=lambda model: (model.state == "READY", model.version))
        return Model(self._life, name, -1, newest.state, newest.reason)

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """The model, or a default value if there is none."""
        try:
            return self[key]
        except (KeyError, TypeError, ValueError):  # of a key that is no name with a version
            return default


_GONE = frozenset({"", "UNAVAILABLE"})


def _reached(condition: Callable[[], bool], timeout: float | None, interval: float) -> bool:
    """Ask until a condition holds; False if it does not in time."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while not condition():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True
