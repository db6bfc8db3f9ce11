"""The flags that say who may call the server, and which headers models see."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from pybackend.cli.flag_values import add_switch
from pybackend.errors import ServerError
from pybackend.settings import (
    ApiGroup,
    ApiKeySettings,
    CorsSettings,
    KeyExemption,
    Restriction,
)

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METADATA_NAME = re.compile(r"[0-9a-z_.-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def add_access_flags(serve: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = serve.add_argument_group("access")
    group.add_argument(
        "--api-key-file",
        type=Path,
        default=None,
        metavar="FILE",
        help="calls need one of the keys in this file, one a line; it is read again when it changes [calls need none]",
    )
    group.add_argument(
        "--api-key-exempt",
        type=_exemptions,
        default=frozenset(),
        metavar="CALLS",
        help=f"calls that need no API key, separated by commas: {', '.join(KeyExemption)} [none]",
    )
    for service, flag, what in (
        ("http", "--http-restricted-api", "api"),
        ("grpc", "--grpc-restricted-protocol", "protocol"),
    ):
        group.add_argument(
            flag,
            action="append",
            type=_restriction(flag, what, service),
            default=[],
            metavar="GROUP,GROUP:HEADER=VALUE",
            help=f"calls of these groups need a header: {', '.join(ApiGroup)}; may be repeated",
        )
        group.add_argument(
            f"--{service}-header-forward-pattern",
            type=_pattern,
            default="",
            metavar="RE2",
            help="headers whose names this pattern matches become request parameters [none]",
        )
    group.add_argument(
        "--http-cors-origin",
        action="append",
        type=_origin,
        default=[],
        metavar="ORIGIN",
        help="web pages that may call the HTTP port: https://example.org, or * for all; may be repeated [none]",
    )
    add_switch(group, "--http-cors-credentials", default=False, text="these pages may send cookies and certificates")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _exemptions(text: str) -> frozenset[KeyExemption]:
    try:
        return frozenset(map(KeyExemption, _names(text)))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"Got {text}, expected a list of {', '.join(KeyExemption)}, separated by commas"
        ) from None


def _restriction(flag: str, what: str, service: str) -> Callable[[str], Restriction]:
    """A parser for ``GROUP,GROUP:HEADER=VALUE``."""

    def parse(text: str) -> Restriction:
        groups, colon, setting = text.partition(":")
        header, equals, value = setting.partition("=")
        names = _names(groups)
        if not (names and colon and equals and header and value):
            raise argparse.ArgumentTypeError(
                f"{flag} option format is '<{what}>,<{what}>,...:<header>=<value>': the value given lacks a part of it"
            )
        for name in names:
            if name not in list(ApiGroup):
                raise argparse.ArgumentTypeError(
                    f"unknown restricted {what} '{name}': it is one of {', '.join(ApiGroup)}"
                )
        if service == "grpc":
            header = header.lower()
        if not (_METADATA_NAME if service == "grpc" else _HEADER_NAME).fullmatch(header):
            raise argparse.ArgumentTypeError(f"'{header}' is no name of a header: use letters, digits and hyphens")
        if not _HEADER_VALUE.fullmatch(value):
            raise argparse.ArgumentTypeError(
                f"the value of header '{header}' cannot be sent: use visible ASCII characters, and blanks only between them"
            )
        return Restriction(frozenset(map(ApiGroup, names)), header, value)

    return parse


def _pattern(text: str) -> str:
    if text:
        # Imported here, because it takes 10 ms.
        from pybackend.frontend.access.patterns import compile_pattern

        try:
            compile_pattern(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"Got {text}, which is no regular expression in RE2's syntax: {error}"
            ) from None
    return text


def _origin(text: str) -> str:
    origin = text.lower()
    if origin == "*" or _ORIGIN.fullmatch(origin):
        return origin
    if _ORIGIN.fullmatch(origin.rstrip("/")):
        raise argparse.ArgumentTypeError(f"Got {text}, but an origin ends without a slash: write {origin.rstrip('/')}")
    raise argparse.ArgumentTypeError(
        f"Got {text}, expected * or an origin as browsers send it: https://example.org or http://localhost:3000"
    )


def restrictions(given: Sequence[Restriction], what: str) -> tuple[Restriction, ...]:
    """The restrictions of a port.

    Args:
        given: as parsed.
        what: a group in messages, ``api`` or ``protocol``.

    Raises:
        ServerError: a group occurs twice.
    """
    seen: set[ApiGroup] = set()
    for each in given:
        for group in sorted(each.groups & seen):
            raise ServerError(
                f"Error: restricted {what} '{group}' can not be specified in multiple config groups: name it in one flag only."
            )
        seen |= each.groups
    return tuple(given)


def cors_settings(given: argparse.Namespace) -> CorsSettings | None:
    """The web pages that may call the HTTP port.

    Raises:
        ServerError: the flags contradict each other.
    """
    if not given.http_cors_origin:
        if given.http_cors_credentials:
            raise ServerError("Error: --http-cors-credentials needs --http-cors-origin, which names the pages.")
        return None
    if given.http_cors_credentials and "*" in given.http_cors_origin:
        raise ServerError(
            "Error: --http-cors-credentials with --http-cors-origin=* would let every web page act for the user: name the "
            "origins."
        )
    return CorsSettings(frozenset(given.http_cors_origin), given.http_cors_credentials)


def key_settings(given: argparse.Namespace) -> ApiKeySettings | None:
    """The keys that calls need.

    Raises:
        ServerError: the flags contradict each other.
    """
    if given.api_key_file is None:
        if given.api_key_exempt:
            raise ServerError("Error: --api-key-exempt needs --api-key-file, which holds the keys of all other calls.")
        return None
    return ApiKeySettings(given.api_key_file.absolute(), given.api_key_exempt)
