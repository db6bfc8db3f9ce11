"""``Triton``: serves functions of this process as models of a server that runs beside it."""

from __future__ import annotations

import atexit
import inspect
import json
import logging
import os
import secrets
import shutil
import signal
import tempfile
import threading
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from pybackend_bind.bind_server import ServerProcess
from pybackend_bind.client.auth import TOKEN_HEADER
from pybackend_bind.exceptions import (
    PyTritonInvalidOperationError,
    PyTritonRuntimeError,
    PyTritonUnrecoverableError,
    PyTritonValidationError,
)
from pybackend_bind.instance import Bound
from pybackend_bind.model_config import DeviceKind, ModelConfig, Tensor, TritonModelConfig, check_name, named

log = logging.getLogger("pybackend_bind")

_ENVIRONMENT = "PYTRITON_TRITON_CONFIG_"
_USUAL_EXIT_S = 30

_MODEL_FILE = '''"""This model is a function of process {pid}, and runs there."""
'''


@dataclass
class TritonConfig:
    """The settings of the server by the names of its flags; None leaves the default of ``pybackend serve``.

    ``PYTRITON_TRITON_CONFIG_HTTP_PORT`` in the environment stands for ``http_port``, and so on, where a field is None.
    """

    model_repository: str | Path | None = None  # of models with code, which the server serves beside the functions
    id: str | None = None
    log_verbose: int | None = None
    log_file: str | Path | None = None
    exit_timeout_secs: int | None = None
    exit_on_error: bool | None = None
    strict_readiness: bool | None = None
    allow_http: bool | None = None
    http_address: str | None = None
    http_port: int | None = None
    http_header_forward_pattern: str | None = None
    http_thread_count: int | None = None
    http_restricted_api: str | None = None
    allow_grpc: bool | None = None
    grpc_address: str | None = None
    grpc_port: int | None = None
    grpc_header_forward_pattern: str | None = None
    grpc_infer_allocation_pool_size: int | None = None
    grpc_use_ssl: bool | None = None
    grpc_use_ssl_mutual: bool | None = None
    grpc_server_cert: str | Path | None = None
    grpc_server_key: str | Path | None = None
    grpc_root_cert: str | Path | None = None
    grpc_infer_response_compression_level: str | None = None
    grpc_keepalive_time: int | None = None
    grpc_keepalive_timeout: int | None = None
    grpc_keepalive_permit_without_calls: bool | None = None
    grpc_http2_max_pings_without_data: int | None = None
    grpc_http2_min_recv_ping_interval_without_data: int | None = None
    grpc_http2_max_ping_strikes: int | None = None
    grpc_restricted_protocol: str | None = None
    allow_metrics: bool | None = None
    allow_gpu_metrics: bool | None = None
    allow_cpu_metrics: bool | None = None
    metrics_interval_ms: int | None = None
    metrics_port: int | None = None
    metrics_address: str | None = None
    allow_sagemaker: bool | None = None
    sagemaker_port: int | None = None
    sagemaker_safe_port_range: str | None = None
    sagemaker_thread_count: int | None = None
    allow_vertex_ai: bool | None = None
    vertex_ai_port: int | None = None
    vertex_ai_thread_count: int | None = None
    vertex_ai_default_model: str | None = None
    metrics_config: list[str] | None = None
    trace_config: list[str] | None = None
    cache_config: list[str] | None = None
    cache_directory: str | None = None
    buffer_manager_thread_count: int | None = None
    flags: list[str] | None = None  # further flags of ``pybackend serve``

    def __post_init__(self) -> None:
        if self.allow_http is False and self.allow_grpc is False:
            raise PyTritonValidationError("allow_http and allow_grpc are both False: nobody could reach the functions")

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Self:
        """The settings of such a dictionary; texts become numbers, booleans or lists as their fields need."""
        known = typing.get_type_hints(cls)
        for name in config:
            if name not in known:
                log.warning("there is no setting '%s' of the server: it has no effect", name)
        return cls(**{name: _converted(value, known[name]) for name, value in config.items() if name in known})

    @classmethod
    def from_env(cls) -> Self:
        """The settings in the environment."""
        found: dict[str, Any] = {}
        for name, value in sorted(os.environ.items()):
            if not name.startswith(_ENVIRONMENT):
                continue
            key, _, number = name.removeprefix(_ENVIRONMENT).lower().rpartition("_")
            if number.isdecimal():
                found.setdefault(key, []).append(value)
            else:
                found[f"{key}_{number}".lstrip("_")] = value
        return cls.from_dict(found)


_TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _converted(value: Any, kind: Any) -> Any:
    """A value of the kind of a field; the server refuses texts that stand for none, and names them."""
    kinds = typing.get_args(kind)
    if not isinstance(value, str):
        return list(value) if list[str] in kinds and value is not None else value
    if bool in kinds:
        return _TRUTHS.get(value.lower(), value)
    if int in kinds and value.isdecimal():
        return int(value)
    return value.split(",") if list[str] in kinds else value


@dataclass
class TritonLifecyclePolicy:
    """When the server starts: with the ``with`` block, or with ``run`` or ``serve``, when all models are bound."""

    launch_triton_on_startup: bool = True
    local_model_store: bool = False  # without effect: the models lie in this process


DefaultTritonLifecyclePolicy = TritonLifecyclePolicy()
VertextAILifecyclePolicy = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)


@dataclass
class TritonSecurityConfig:
    """Which routes need a token, by the names of groups; others need none. ``[]`` restricts nothing.

    Raises PyTritonValidationError: there is no such group.
    """

    access_token: str | None = field(default=None, repr=False)  # None makes one
    restricted_endpoints: list[str] | None = None  # None stands for those that change the server, and for statistics

    def __post_init__(self) -> None:
        if self.restricted_endpoints is None:
            self.restricted_endpoints = list(_RESTRICTED)
        for name in self.restricted_endpoints:
            if name not in _ENDPOINTS:
                raise PyTritonValidationError(
                    f"there is no endpoint {name!r} to restrict: the endpoints are {', '.join(_ENDPOINTS)}"
                )
        if self.access_token is None and self.restricted_endpoints:
            self.access_token = secrets.token_urlsafe(32)

    def variables(self) -> dict[str, str]:
        """The settings of the server that ask for the token: variables, for all users of the machine can read command lines."""
        if not (self.access_token and self.restricted_endpoints):
            return {}
        rule = f"{','.join(self.restricted_endpoints)}:{TOKEN_HEADER}={self.access_token}"
        return dict.fromkeys(_RESTRICTIONS, json.dumps([rule]))


_RESTRICTED = ("shared-memory", "model-repository", "statistics", "trace", "logging")
_ENDPOINTS = ("health", "metadata", "inference", "model-config", *_RESTRICTED)
_RESTRICTIONS = ("PYBACKEND_HTTP_RESTRICTED_API", "PYBACKEND_GRPC_RESTRICTED_PROTOCOL")


class Triton:
    """A server beside this process, whose models are functions that run here, each instance in a thread.

    Any thread may call its methods. ``workspace`` is a directory for the files of the server; it may be deleted after
    ``stop``. Without a ``security_config``, a new token restricts what that restricts by itself, unless settings of the
    server restrict routes.
    """

    def __init__(
        self,
        *,
        config: TritonConfig | None = None,
        workspace: str | Path | None = None,
        triton_lifecycle_policy: TritonLifecyclePolicy | None = None,
        security_config: TritonSecurityConfig | None = None,
    ) -> None:
        if config is not None:
            _check_type("config", config, TritonConfig)
        given = {name: value for name, value in vars(config or TritonConfig()).items() if value is not None}
        self._settings = TritonConfig(**{**vars(TritonConfig.from_env()), **given})
        self._security = _security(security_config, self._settings)
        self._workspace = workspace
        self._policy = triton_lifecycle_policy or DefaultTritonLifecyclePolicy
        self._pid = os.getpid()
        self._changing = threading.RLock()
        self._bound: dict[str, Bound] = {}
        self._may_be_replaced: set[str] = set()  # functions that were bound before the last stop
        self._server: ServerProcess | None = None
        self._repository = ""
        self._ended = threading.Event()  # the server has ended, or is to
        self._failure: PyTritonRuntimeError | PyTritonUnrecoverableError | None = None

    # Functions

    def bind(
        self,
        model_name: str,
        infer_func: Callable[..., Any] | Sequence[Callable[..., Any]],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        model_version: int = 1,
        config: ModelConfig | None = None,
        strict: bool = False,
        trace_config: list[str] | None = None,
    ) -> None:
        """Serve a function as a model, now or from :meth:`run` on.

        Several functions are instances that run at the same time.

        A function gets a list of requests, and returns a list with a dictionary of arrays for each; see the decorators
        for other forms. ``strict`` compares the types and shapes of what it returns with ``outputs``; names are
        compared in any case. ``trace_config`` is the server's: see :class:`TritonConfig`.

        Raises PyTritonError: an argument is wrong, the name is taken, or the server cannot load the model.
        """
        config = ModelConfig() if config is None else config
        check_name(model_name)
        _check_type("config", config, ModelConfig)
        if trace_config is not None:
            log.warning("trace_config is for the whole server: pass it to TritonConfig")
        if type(model_version) is not int or model_version < 1:
            raise PyTritonValidationError(f"model_version is {model_version!r}: it must be a number from 1 on")
        functions = _functions(model_name, infer_func, config)
        described = TritonModelConfig(
            model_name=model_name,
            model_version=model_version,
            inputs=named(inputs, "INPUT"),
            outputs=named(outputs, "OUTPUT"),
            batching=config.batching,
            max_batch_size=config.max_batch_size if config.batching else 0,
            batcher=config.batcher,
            response_cache=config.response_cache,
            decoupled=config.decoupled,
            model_warmup=config.model_warmup,
            parameters=config.parameters,
            instance_group={DeviceKind.KIND_CPU: len(functions)},
        )
        if any(output.optional for output in described.outputs):
            raise PyTritonValidationError(f"an output of model '{model_name}' is optional: only inputs can be")
        text = described.text()
        self._check_process()
        with self._changing:
            if model_name in self._bound and model_name not in self._may_be_replaced:
                raise PyTritonInvalidOperationError(
                    f"a function is bound as '{model_name}' already: bind this one by another name"
                )
            self._may_be_replaced.discard(model_name)
            self._bound[model_name] = Bound(described, functions, strict, self._give_up)
            server = self._server
            if server is None:
                return
            try:
                self._write(model_name, text)
                server.load(model_name)
            except BaseException as error:  # Ctrl-C, too: the name is free again
                del self._bound[model_name]
                shutil.rmtree(Path(self._repository, model_name), ignore_errors=True)
                if isinstance(error, OSError):
                    raise PyTritonRuntimeError(f"model '{model_name}' cannot be bound: {error.strerror}") from None
                raise

    def _write(self, name: str, text: str) -> None:
        directory = Path(self._repository, name)
        version = directory / str(self._bound[name].config.model_version)
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.py").write_text(_MODEL_FILE.format(pid=os.getpid()))
        (directory / "config.pbtxt").write_text(text)

    # Life

    def run(self) -> None:
        """Start the server, and wait until all functions can be called; nothing if it runs.

        Raises PyTritonError: it cannot start, or cannot load a model.
        """
        self._check_process()
        with self._changing:
            if self._server is not None:
                if not self._server.end:
                    return
                self._clean()
            self._failure = None
            self._may_be_replaced.clear()
            self._ended.clear()
            try:
                if self._workspace is not None:
                    os.makedirs(self._workspace, exist_ok=True)
                self._repository = tempfile.mkdtemp(prefix="pybackend-bind-", dir=self._workspace)
                for name, bound in self._bound.items():
                    self._write(name, bound.config.text())
                self._server = ServerProcess(
                    list(self._flags()), self._security.variables(), self._bound.get, self._on_end
                )
                atexit.register(self.stop)
                self._server.wait_ready()
            except BaseException as error:  # Ctrl-C, too
                self._end()
                self._failure = None  # this error tells it
                if isinstance(error, OSError):
                    where = f"{error.filename}: " if error.filename else ""
                    raise PyTritonRuntimeError(f"the server cannot be started: {where}{error.strerror}") from None
                raise
            where = " and ".join(f"{kind.upper()} {address}" for kind, address in self.addresses.items() if address)
            log.info("%d functions of this process are served at %s; they are not confined", len(self._bound), where)
            if self._security.variables() and self.addresses["http"]:
                log.info(
                    "`pybackend status --url=%s --header=%s=TOKEN` looks at the server, and so do top and stack: TOKEN is what "
                    "triton.get_access_token() returns",
                    self.addresses["http"],
                    TOKEN_HEADER,
                )

    connect = run

    def serve(self, monitoring_period_s: float = 10.0) -> None:
        """Start the server, and wait until :meth:`stop`, Ctrl-C or SIGTERM, then stop it.

        ``monitoring_period_s`` has no effect: the end of the server shows at once. Raises PyTritonRuntimeError: the
        server has ended by itself, perhaps before this call; PyTritonUnrecoverableError: a function has raised it,
        likewise.
        """
        with _termination() as was_terminated:
            try:
                if self._failure is None:
                    self.run()
                    self._ended.wait()
            except KeyboardInterrupt:
                log.info("The server is stopped: %s.", "SIGTERM" if was_terminated() else "Ctrl-C")
            failure, self._failure = self._failure, None
            self.stop()
        if failure is not None:
            raise failure

    def stop(self) -> bool:
        """Answer the running requests and end the server; False if it does not run.

        Functions stay bound for the next :meth:`run`, until others are bound by their names.
        """
        if self._pid != os.getpid():
            return False
        self._ended.set()  # so that `serve` in another thread returns
        with self._changing:
            was_running = self._end()
            if was_running:
                self._may_be_replaced.update(self._bound)
            return was_running

    def _end(self) -> bool:
        server = self._server
        try:
            if server is not None:
                server.stop(self._settings.exit_timeout_secs or _USUAL_EXIT_S)
        finally:
            self._clean()
        return server is not None

    def _clean(self) -> None:
        self._server = None
        shutil.rmtree(self._repository, ignore_errors=True)
        with suppress(Exception):  # the interpreter ends
            atexit.unregister(self.stop)

    @property
    def addresses(self) -> dict[str, str]:
        """``host:port`` by protocol: http, grpc and metrics; empty for those that are off, and if no server runs."""
        server = self._server
        return {} if server is None else dict(server.addresses)

    @property
    def server_pid(self) -> int | None:
        """The number of the server's process; None if no server runs."""
        server = self._server
        return server.pid if server is not None and server.is_alive else None

    def is_alive(self) -> bool:
        """True while the server runs."""
        server = self._server
        return server is not None and server.is_alive

    is_connected = is_alive

    def get_access_token(self) -> str | None:
        """The token that restricted routes need; None if there are none."""
        return self._security.access_token

    def __enter__(self) -> Self:
        if self._policy.launch_triton_on_startup:
            self.run()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _flags(self) -> Iterator[str]:
        yield self._repository
        if self._settings.model_repository is None:
            yield "--disable-auto-complete-config"
        for each in fields(self._settings):
            value = getattr(self._settings, each.name)
            if value is None:
                continue
            for one in value if isinstance(value, list | tuple) else [value]:
                text = str(one).lower() if isinstance(one, bool) else str(one)
                yield text if each.name == "flags" else f"--{each.name.replace('_', '-')}={text}"

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise PyTritonInvalidOperationError(
                "this process was forked from the one that serves: make a Triton of its own here"
            )

    # In other threads

    def _on_end(self, end: str) -> None:
        server = self._server
        if server is not None and server.addresses:  # otherwise `run` says it
            self._failure = self._failure or PyTritonRuntimeError(end)
            log.error("%s", end)
        self._ended.set()

    def _give_up(self, why: str) -> None:
        """A function cannot go on."""
        log.critical("%s", why)
        self._failure = PyTritonUnrecoverableError(why)
        threading.Thread(target=self.stop, name="pybackend-bind-stop", daemon=True).start()


def _check_type(what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise PyTritonValidationError(f"{what} is of type {type(value).__name__}: pass {kind.__name__}(...)")


def _security(given: TritonSecurityConfig | None, settings: TritonConfig) -> TritonSecurityConfig:
    """The restrictions in force. Raises PyTritonValidationError: there are others, too."""
    flags = ("--http-restricted-api", "--grpc-restricted-protocol")
    has_own = (
        bool(settings.http_restricted_api or settings.grpc_restricted_protocol)
        or any(flag.startswith(flags) for flag in settings.flags or ())
        or any(name in os.environ for name in _RESTRICTIONS)
    )
    if given is None:
        return TritonSecurityConfig(restricted_endpoints=[] if has_own else None)
    _check_type("security_config", given, TritonSecurityConfig)
    if has_own and given.variables():
        raise PyTritonValidationError(
            "security_config restricts routes, and so does a setting of the server (http_restricted_api, grpc_restricted_protocol, or "
            "a flag or variable of their names): use one of both"
        )
    return given


def _functions(
    model_name: str, given: Callable[..., Any] | Sequence[Callable[..., Any]], config: ModelConfig
) -> list[Callable[..., Any]]:
    """The functions of a model. Raises PyTritonValidationError: these are none."""
    functions = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not functions:
        raise PyTritonValidationError(
            f"model '{model_name}' has an empty list of functions: it needs one for each instance"
        )
    for function in functions:
        if not callable(function):
            raise PyTritonValidationError(f"{function!r} is no function, which model '{model_name}' needs")
        innermost: Any = inspect.unwrap(function)
        is_generator = inspect.isgeneratorfunction(innermost) or inspect.isasyncgenfunction(innermost)
        if is_generator and not config.decoupled:
            raise PyTritonValidationError(
                f"the function of model '{model_name}' is a generator, which answers with a stream: pass ModelConfig(decoupled=True)"
            )
    return functions


@contextmanager
def _termination() -> Iterator[Callable[[], bool]]:
    """Make SIGTERM end a wait as Ctrl-C does, in the main thread and unless the program has a handler of its own."""
    was_terminated = False

    def on_signal(_number: int, _frame: Any) -> None:
        nonlocal was_terminated
        was_terminated = True
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield lambda: was_terminated
        return
    signal.signal(signal.SIGTERM, on_signal)
    try:
        yield lambda: was_terminated
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class RemoteTriton:
    """PyTriton's name for functions that are served by somebody else's server, which is not possible here."""

    def __init__(self, *_: object, **_settings: object) -> None:
        raise PyTritonInvalidOperationError(
            "functions are served by the server that their program starts: use Triton() in place of RemoteTriton(), or give a server "
            "that runs already a model file"
        )
