"""The flags of ``pybackend serve``, named as in the reference, and their conversion to settings."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pybackend import __version__
from pybackend.cli.access_flags import add_access_flags, key_settings
from pybackend.cli.backend_config import backend_setting, backend_settings, backend_warnings
from pybackend.cli.cache_config import cache_setting, cache_settings
from pybackend.cli.cloud_flags import add_cloud_flags, cloud_settings
from pybackend.cli.command_parser import CommandParser, UsageError
from pybackend.cli.endpoint_flags import add_endpoint_flags, endpoint_settings
from pybackend.cli.flag_values import add_switch, integer
from pybackend.cli.host_policy import host_policies, host_policy
from pybackend.cli.log_flags import add_log_flags, log_settings
from pybackend.cli.metrics_flags import add_metrics_flags, metrics_settings, metrics_warnings
from pybackend.cli.print_config import settings_text
from pybackend.cli.rate_limit import rate_limit_mode, resource_count, resource_limits
from pybackend.cli.repository_flags import add_repository_flags, repository_settings
from pybackend.cli.sandbox_flags import add_sandbox_flags, sandbox_settings
from pybackend.cli.setting_sources import SettingSources
from pybackend.cli.trace_flags import add_trace_flags, trace_settings, trace_warnings
from pybackend.cli.unused_flags import add_unused_flags, unused_warnings
from pybackend.errors import ServerError
from pybackend.settings import (
    DEFAULT_BACKEND_DIRECTORY,
    DEFAULT_DEBUG_PORT,
    DebugSettings,
    EnvironmentSettings,
    ModelControlMode,
    Settings,
    half_of_memory_bytes,
)
from pybackend.spelling import closest

_COMMANDS = """\
write models:
  new      write a model to begin with, and a test and a client for it
  import   make an entry of a repository from a file of a framework
  dev      serve models, and load them again when a file is saved
  check    validate the models of a repository without running them
  infer    send one request to a model and print the response
  graph    draw the ensembles of a repository
  export-config  print the complete configuration of a model

serve them:
  serve    serve the models of a repository
  doctor   check whether this machine can run a server

control a running server:
  status   list its models
  stack    show where a model hangs
  top      show requests, failures and times of its models, live
  load     load a model
  traffic  distribute requests over a model's versions
  unload   unload a model

environments of models:
  pack     pack an environment
  env      inspect and maintain them

others:
  version  print the version

`pybackend COMMAND --help` explains a command.
"""


def control_mode(text: str) -> ModelControlMode:
    """Parse ``none``, ``poll`` or ``explicit``, in any case."""
    try:
        return ModelControlMode(text.lower())
    except ValueError:
        raise argparse.ArgumentTypeError(f"Invalid model control mode: {text}. Write none, poll or explicit") from None


def config_name(text: str) -> str:
    """Parse the name of a file without its suffix."""
    if "/" in text or "\0" in text:
        raise argparse.ArgumentTypeError(
            f"Invalid name: {text}. Write the name of a file in the folder 'configs' of models, without .pbtxt"
        )
    return text.removesuffix(".pbtxt")


def make_parser() -> tuple[argparse.ArgumentParser, CommandParser]:
    """The parser of the whole command line, and its subparser for ``serve``."""
    parser = CommandParser(
        prog="pybackend",
        usage="pybackend COMMAND ...",
        description="Serves models written for Triton's Python backend.",
        epilog=_COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"pybackend {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    serve = commands.add_parser(
        "serve",
        prog="pybackend serve",
        usage="pybackend serve [--FLAG[=VALUE]]... [REPOSITORY]",
        description="Serves models over HTTP and gRPC.",
    )
    add_serve_flags(serve)
    return parser, serve


def add_serve_flags(serve: CommandParser) -> None:
    """Add the flags and the argument of ``serve``."""
    _add_repository(serve)
    _add_environments(serve)
    _add_sandbox(serve)
    add_endpoint_flags(serve)
    add_metrics_flags(serve)
    add_access_flags(serve)
    add_cloud_flags(serve)
    _add_server(serve)
    add_log_flags(serve)
    add_trace_flags(serve)
    _add_debugging(serve)
    _add_configuration(serve)
    add_unused_flags(serve)


def _add_repository(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("models")
    add_repository_flags(group)
    group.add_argument(
        "--model-control-mode",
        type=control_mode,
        default=ModelControlMode.NONE,
        metavar="MODE",
        help="none: load all models at start and keep them; poll: and follow changes of the repositories; explicit: load "
        "models on request [none]",
    )
    group.add_argument(
        "--repository-poll-secs",
        type=integer(0),
        default=15,
        metavar="SECONDS",
        help="with mode poll, how often the repositories are searched for changes; 0 for never [15]",
    )
    group.add_argument(
        "--load-model",
        action="append",
        default=[],
        metavar="NAME",
        help="with explicit control, a model to load at start; may be repeated; * loads all",
    )
    add_switch(
        group,
        "--disable-auto-complete-config",
        default=False,
        text="use configurations as written; models cannot complete them",
    )
    add_switch(group, "--strict-model-config", default=False, text="an older name of --disable-auto-complete-config")
    add_switch(group, "--exit-on-error", default=True, text="exit if a model cannot be loaded at start")
    add_switch(group, "--strict-readiness", default=True, text="be ready only while every model is ready")
    add_switch(
        group,
        "--validate-outputs",
        default=False,
        text="an output that is not as configured is an error; VALIDATE_OUTPUTS in a model's parameters decides for that model",
    )
    group.add_argument(
        "--model-load-thread-count",
        type=integer(1, 1024),
        default=4,
        metavar="N",
        help="number of models that may load at the same time [4]",
    )
    group.add_argument(
        "--model-load-retry-count",
        type=integer(0, 1000),
        default=0,
        metavar="N",
        help="how often a failed load is tried again [0]",
    )
    group.add_argument(
        "--model-config-name",
        type=config_name,
        default="",
        metavar="NAME",
        help="models with a file configs/NAME.pbtxt are configured by that instead of config.pbtxt",
    )
    add_switch(
        group,
        "--model-namespacing",
        default=False,
        text="each repository is a namespace: models of the same name in several repositories are all served",
    )
    add_switch(
        group,
        "--no-zygote",
        default=False,
        text="start each process separately instead of forking from one with preloaded modules",
    )
    add_switch(
        group,
        "--no-shared-core",
        default=False,
        text="server and models' processes never wait on one core, not even while requests come one at a time",
    )
    group.add_argument(
        "--gpu-models",
        choices=("refuse", "cpu"),
        default="refuse",
        metavar="MODE",
        help="on a machine without a GPU, models configured for one (KIND_GPU): refuse to load them, or run them on the "
        "cpu [refuse]",
    )
    group.add_argument(
        "--model-memory-limit",
        type=integer(1024 * 1024),
        default=None,
        metavar="BYTES",
        help="limit on tensor memory, for each model's inputs and for each instance's outputs [half of the server's]",
    )
    group.add_argument(
        "--tensor-memory-limit",
        type=integer(1024 * 1024),
        default=None,
        metavar="BYTES",
        help="limit on the tensor memory of all models together [half of the server's, or --model-memory-limit if that is "
        "more]",
    )
    group.add_argument(
        "--backend-directory",
        type=Path,
        default=DEFAULT_BACKEND_DIRECTORY,
        metavar="DIR",
        help="directory of your own backends, DIR/NAME/model.py; one of pybackend's names replaces that backend "
        f"[{DEFAULT_BACKEND_DIRECTORY}]",
    )
    group.add_argument(
        "--backend-config",
        action="append",
        type=backend_setting,
        default=[],
        metavar="BACKEND,SETTING=VALUE",
        help="a setting of a backend: environment=PATH, default-max-batch-size=N, or one of Triton's Python backend, which is "
        "checked, but has no effect; may be repeated",
    )


def _add_environments(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("environments of models")
    group.add_argument(
        "--environment-cache-directory",
        type=Path,
        default=None,
        metavar="DIR",
        help="where environments are unpacked [$XDG_CACHE_HOME/pybackend, else /var/cache/pybackend for root and "
        "~/.cache/pybackend for others]",
    )
    group.add_argument(
        "--environment-cache-size",
        type=integer(1),
        default=None,
        metavar="BYTES",
        help="remove unused environments when the total exceeds this size [never]",
    )
    add_switch(group, "--allow-pack-at-load", default=False, text="install packages when a model names a list of them")


def _add_sandbox(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("sandbox of models")
    add_sandbox_flags(group)
    add_switch(group, "--sandbox-required", default=False, text="refuse to load a model if its sandbox lacks a layer")
    add_switch(
        group,
        "--allow-model-overrides",
        default=False,
        text="models at level standard may supply configurations and files when they load models of other authors",
    )


def _add_server(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("server")
    group.add_argument("--id", default="triton", metavar="NAME", help="name in the server's metadata [triton]")
    group.add_argument(
        "--exit-timeout-secs",
        type=integer(0),
        default=30,
        metavar="SECONDS",
        help="how long running requests and `finalize` may take at shutdown [30]",
    )
    group.add_argument(
        "--cache-config",
        action="append",
        type=cache_setting,
        default=[],
        metavar="CACHE,SETTING=VALUE",
        help="response cache of models with response_cache: local,size=BYTES or redis,host=NAME,port=PORT [none]",
    )
    group.add_argument(
        "--host-policy",
        action="append",
        type=host_policy,
        default=[],
        metavar="NAME,SETTING=VALUE",
        help="cores for the processes of instances: cpu,cpu-cores=0-3 or cpu,numa-node=0; may be repeated",
    )
    group.add_argument(
        "--max-queued-bytes",
        type=integer(1),
        default=None,
        metavar="BYTES",
        help="limit on input bytes of queued and running requests; requests beyond it get status 503 [no limit]",
    )
    group.add_argument(
        "--rate-limit",
        type=rate_limit_mode,
        default="off",
        metavar="MODE",
        help="off, or execution_count: instances execute only while they hold the resources that they need [off]",
    )
    group.add_argument(
        "--rate-limit-resource",
        action="append",
        type=resource_count,
        default=[],
        metavar="NAME:COUNT[:DEVICE]",
        help="available count of a resource [as many as the most demanding instance needs]; may be repeated",
    )
    group.add_argument(
        "--response-cache-byte-size",
        type=integer(0),
        default=None,
        metavar="BYTES",
        help="the same as --cache-config=local,size=BYTES",
    )
    add_switch(
        group,
        "--allow-client-shm",
        default=False,
        text="clients on this machine may register shared memory and name it in requests",
    )


def _add_debugging(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("debugging")
    group.add_argument(
        "--debug",
        action="append",
        default=[],
        metavar="MODEL",
        help="run the processes of a model under debugpy, without time limits; may be repeated",
    )
    group.add_argument(
        "--debug-port",
        type=integer(0, 65535),
        default=DEFAULT_DEBUG_PORT,
        metavar="PORT",
        help=f"port on 127.0.0.1 for the first process, further ones follow; 0 takes free ports [{DEFAULT_DEBUG_PORT}]",
    )
    add_switch(
        group,
        "--no-fast-paths",
        default=False,
        text="remember nothing of earlier requests, to find out whether a fault comes from that",
    )
    add_switch(group, "--debug-wait", default=False, text="import a debugged model only after a debugger has attached")


def _add_configuration(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("configuration")
    group.add_argument(
        "--config-file",
        type=Path,
        default=None,
        metavar="FILE",
        help="TOML with the names of flags as keys; the command line and variables PYBACKEND_<FLAG> win over it [none]",
    )
    group.add_argument(
        "--version", action="version", version=f"pybackend {__version__}", help="print the version, and exit"
    )
    group.add_argument(
        "--print-config", action="store_true", help="print the settings in effect and where each comes from, and exit"
    )


def parse(arguments: Sequence[str]) -> Settings | str | None:
    """The settings of a command line, its settings as text if it wants them printed, None if it names no command.

    Raises:
        UsageError: a flag, a value or a command does not exist.
        ServerError: the settings contradict each other.
    """
    if arguments and not arguments[0].startswith("-") and arguments[0] != "serve":
        similar = closest(arguments[0], re.findall(r"^  (\S+)", _COMMANDS, re.MULTILINE))
        advice = (
            f"Did you mean `pybackend {similar}`?"
            if similar
            else "To serve models write `pybackend serve DIRECTORY`; `pybackend --help` lists the commands"
        )
        raise UsageError(f"Unexpected argument: {arguments[0]}. {advice}", make_parser()[0].format_usage())
    given, sources = _parsed(arguments)
    if given.command is None:
        return None
    settings = settings_of(given, sources.warnings, needs_repository=not given.print_config)
    return settings_text(sources.settings) if given.print_config else settings


def parse_serve_flags(arguments: Sequence[str]) -> Settings:
    """The settings of the flags and arguments of ``pybackend serve``, of which the repository may be missing.

    Raises:
        UsageError: a flag or a value does not exist.
        ServerError: the settings contradict each other.
    """
    given, sources = _parsed(["serve", *arguments])
    return settings_of(given, sources.warnings, needs_repository=False)


def _parsed(arguments: Sequence[str]) -> tuple[argparse.Namespace, SettingSources]:
    parser, serve = make_parser()
    sources = SettingSources(serve, os.environ)
    given, rest = parser.parse_known_args(list(arguments))
    if rest:
        serve.refuse(rest[0])
    return given if given.command is None else sources.complete(given, arguments), sources


def settings_of(given: argparse.Namespace, source_warnings: Sequence[str], *, needs_repository: bool) -> Settings:
    """The settings that the parsed flags of ``serve`` select.

    Args:
        given: the flags, completed from all sources.
        source_warnings: sentences about the sources, for the log.
        needs_repository: a repository must be given.

    Raises:
        ServerError: they contradict each other, or there is no repository.
    """
    repositories, cloud_repositories = repository_settings(given, needs_repository=needs_repository)
    startup_models = _startup_models(given)
    clouds = cloud_settings(given, os.environ)
    http, grpc = endpoint_settings(given, clouds)
    return Settings(
        repositories=repositories,
        cloud_repositories=cloud_repositories,
        server_id=given.id,
        model_control=given.model_control_mode,
        repository_poll_s=given.repository_poll_secs or None,
        startup_models=startup_models,
        config_name=given.model_config_name,
        model_namespacing=given.model_namespacing,
        load_retry_count=given.model_load_retry_count,
        backend_directory=given.backend_directory.absolute(),
        backend_settings=backend_settings(given.backend_config),
        auto_complete=not (given.disable_auto_complete_config or given.strict_model_config),
        exit_on_error=given.exit_on_error,
        strict_readiness=given.strict_readiness,
        validate_outputs=given.validate_outputs,
        model_load_count=given.model_load_thread_count,
        zygotes=not given.no_zygote,
        fast_paths=not given.no_fast_paths,
        shared_core=not given.no_shared_core,
        gpu_models_on_cpu=given.gpu_models == "cpu",
        model_memory_limit_bytes=given.model_memory_limit or half_of_memory_bytes(),
        tensor_memory_limit_bytes=given.tensor_memory_limit
        or max(given.model_memory_limit or 0, half_of_memory_bytes()),
        exit_timeout_s=given.exit_timeout_secs,
        http=http,
        grpc=grpc,
        metrics=metrics_settings(given),
        api_keys=key_settings(given),
        clouds=clouds,
        log=log_settings(given, os.environ),
        debug=_debug_settings(given),
        host_policies=host_policies(given.host_policy),
        resource_limits=resource_limits(given.rate_limit_resource, enabled=given.rate_limit),
        max_queued_bytes=given.max_queued_bytes,
        environments=EnvironmentSettings(
            given.environment_cache_directory and given.environment_cache_directory.absolute(),
            given.environment_cache_size,
            given.allow_pack_at_load,
        ),
        cache=cache_settings(given.cache_config, given.response_cache_byte_size),
        sandbox=sandbox_settings(given),
        client_shared_memory=given.allow_client_shm,
        trace=trace_settings(given, os.environ),
        warnings=(
            *source_warnings,
            *backend_warnings(given.backend_config),
            *metrics_warnings(given.metrics_config),
            *trace_warnings(given),
            *unused_warnings(given),
        ),
    )


def _debug_settings(given: argparse.Namespace) -> DebugSettings:
    if not given.debug and (given.debug_wait or given.debug_port != DEFAULT_DEBUG_PORT):
        raise ServerError("Error: --debug-port and --debug-wait need --debug=MODEL, which says what to debug.")
    return DebugSettings(tuple(dict.fromkeys(given.debug)), given.debug_port, given.debug_wait)


def _startup_models(given: argparse.Namespace) -> tuple[str, ...] | None:
    """The names to load at start, None for all."""
    names = tuple(dict.fromkeys(given.load_model))
    if given.model_control_mode is not ModelControlMode.EXPLICIT:
        if names:
            raise ServerError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        return None
    if "*" not in names:
        return names
    if len(names) > 1:
        raise ServerError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    return None


def print_help() -> None:
    """Print the usage of the command."""
    make_parser()[0].print_help(sys.stdout)
