"""The flags of the log."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from pybackend.cli.flag_values import add_switch, verbosity
from pybackend.observability.log_settings import LogFormat, LogSettings

_ESCAPES = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
"""The reference's variable: 0 or false leaves messages unquoted."""


def log_format(text: str) -> LogFormat:
    """Parse ``default``, ``ISO8601``, ``json`` or ``short``."""
    try:
        return LogFormat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"invalid argument for --log_format, got: {text}. Write default, ISO8601, json or short"
        ) from None


def add_log_flags(serve: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = serve.add_argument_group("log")
    group.add_argument(
        "--log-verbose",
        type=verbosity,
        nargs="?",
        const=1,
        default=0,
        metavar="LEVEL",
        help="1 enables verbose lines, including those of models [0]",
    )
    add_switch(group, "--log-info", default=True, text="write informational lines")
    add_switch(group, "--log-warning", default=True, text="write warnings")
    add_switch(group, "--log-error", default=True, text="write errors")
    group.add_argument(
        "--log-format",
        type=log_format,
        default=LogFormat.DEFAULT,
        metavar="FORMAT",
        help="form of the lines: default, ISO8601, json or short [default]",
    )
    group.add_argument(
        "--log-file",
        type=Path,
        default=None,
        metavar="FILE",
        help="write all lines to this file; SIGHUP opens it again [standard output and standard error]",
    )
    add_switch(group, "--log-access", default=False, text="write a line about every answered request")


def log_settings(given: argparse.Namespace, variables: Mapping[str, str]) -> LogSettings:
    """The settings that the flags, and the environment variables, select."""
    file = given.log_file
    return LogSettings(
        info=given.log_info,
        warning=given.log_warning,
        error=given.log_error,
        verbose_level=given.log_verbose,
        format=given.log_format,
        file=file.absolute() if file is not None and str(file) != "." else None,
        access=given.log_access,
        escapes=variables.get(_ESCAPES, "1").lower() not in {"0", "false"},
    )
