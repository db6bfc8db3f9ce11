"""The meanings of flags' texts; a text without one is an ``ArgumentTypeError``."""

import argparse
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeVar

from pybackend.errors import SettingError
from pybackend.flag import FALSE, TRUE, boolean, integer
from pybackend.observability.log_lines import LogFormat
from pybackend.plugins import STORAGE
from pybackend.repository.remote import is_url
from pybackend.settings import ApiGroup, KeyExemption, ModelControlMode, Restriction, is_origin, usual_front_ends

FOREVER_MS = 2**31 - 1
"""The number of milliseconds that means no limit, as in gRPC."""

Member = TypeVar("Member", bound=StrEnum)

ResourceCount = tuple[str, int | None, int]
"""Name, device (None for all) and count."""

_RATE_LIMIT_MODES = ("off", "execution_count")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METADATA_NAME = re.compile(r"[0-9a-z_.-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_POOL = re.compile(r"\d+:\d+")


MOST_FRONT_ENDS = 64


def front_ends(text: str) -> int:
    """Parse a number of processes, or ``auto``, which depends on the cores that this process may use."""
    if text != "auto":
        return integer(0, MOST_FRONT_ENDS)(text)
    return usual_front_ends(len(os.sched_getaffinity(0)))


def verbosity(text: str) -> int:
    """Parse a number, or true as 1 and false as 0."""
    if text.isdecimal():
        return int(text)
    if text.lower() in TRUE | FALSE:
        return int(boolean(text))
    raise argparse.ArgumentTypeError(f"invalid value for bool option: {text}. Write a level such as 1, true or false")


def _member(kind: type[Member], text: str, complaint: str) -> Member:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(complaint) from None


def control_mode(text: str) -> ModelControlMode:
    """Parse ``none``, ``poll`` or ``explicit``, in any case."""
    complaint = f"Invalid model control mode: {text}. Write none, poll or explicit"
    return _member(ModelControlMode, text.lower(), complaint)


def log_format(text: str) -> LogFormat:
    """Parse ``default``, ``ISO8601``, ``json`` or ``short``."""
    complaint = f"invalid argument for --log_format, got: {text}. Write default, ISO8601, json or short"
    return _member(LogFormat, text, complaint)


def config_name(text: str) -> str:
    """Parse the name of a file without its suffix."""
    if "/" in text or "\0" in text:
        raise argparse.ArgumentTypeError(
            f"Invalid name: {text}. Write the name of a file in the folder 'configs' of models, without .pbtxt"
        )
    return text.removesuffix(".pbtxt")


def repository_place(text: str) -> Path | str:
    """Parse the path of a directory, or a URL, which stays text. Raises ServerError if the URL has an unknown form."""
    if not is_url(text):
        return Path(text)
    STORAGE.load().check(text)
    return text


def absolute(path: Path) -> Path:
    """The path from the root, without ``..``: models receive it, and may change their working directory.

    Links stay in it, because they may lead elsewhere later; only those before a ``..`` are followed, as the kernel
    does.
    """
    whole = path.absolute()
    if ".." not in whole.parts:
        return whole
    kept = whole.parts[::-1].index("..")
    first = len(whole.parts) - kept
    return Path(os.path.realpath(Path(*whole.parts[:first])), *whole.parts[first:])


def absolute_if_given(path: Path | None) -> Path | None:
    """The same for a path that may have been left out."""
    return path and absolute(path)


def milliseconds(number: int) -> float:
    """The seconds of a number of milliseconds, of which the largest means no limit."""
    return inf if number == FOREVER_MS else number / 1000


# Resources of instances


def rate_limit_mode(text: str) -> bool:
    """``execution_count`` for True, ``off`` for False."""
    if text not in _RATE_LIMIT_MODES:
        raise argparse.ArgumentTypeError(f"Invalid rate limit mode: {text}. Write off or execution_count")
    return text == "execution_count"


def resource_count(text: str) -> ResourceCount:
    """Read ``<name>:<count>[:<device>]``."""
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 2 or not all(_is_number(number) for number in numbers):
        raise argparse.ArgumentTypeError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got "
            f"{text}"
        )
    return name, int(numbers[1]) if len(numbers) == 2 else None, int(numbers[0])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def resource_limits(given: Iterable[ResourceCount], *, enabled: bool) -> Mapping[tuple[str, int | None], int] | None:
    """The count of each resource; None if the rate limiter is off."""
    return {(name, device): count for name, device, count in given} if enabled else None


# Access


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def exemptions(text: str) -> frozenset[KeyExemption]:
    """Parse a list of calls that need no API key."""
    complaint = f"Got {text}, expected a list of {', '.join(KeyExemption)}, separated by commas"
    return frozenset(_member(KeyExemption, name, complaint) for name in _names(text))


def restriction(flag: str, what: str, service: str) -> Callable[[str], Restriction]:
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


def restrictions(what: str) -> Callable[[Iterable[Restriction]], tuple[Restriction, ...]]:
    """Makes the restrictions of a port from those given; refuses a group that occurs twice.

    ``what``: a group in messages, ``api`` or ``protocol``.
    """

    def check(given: Iterable[Restriction]) -> tuple[Restriction, ...]:
        seen: set[ApiGroup] = set()
        for each in given:
            for group in sorted(each.groups & seen):
                raise SettingError(
                    f"restricted {what} '{group}' can not be specified in multiple config groups: name it in one flag only."
                )
            seen |= each.groups
        return tuple(given)

    return check


def pattern(text: str) -> str:
    """Check a regular expression."""
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


def origin(text: str) -> str:
    """Parse the origin of web pages, or ``*``."""
    found = text.lower()
    if found == "*" or is_origin(found):
        return found
    if found == "null":
        raise argparse.ArgumentTypeError(
            "Got null, which is the origin of every page opened from disk: serve the page with `python -m http.server 3000` and "
            "allow http://localhost:3000, or allow all pages with *"
        )
    if is_origin(found.rstrip("/")):
        raise argparse.ArgumentTypeError(f"Got {text}, but an origin ends without a slash: write {found.rstrip('/')}")
    raise argparse.ArgumentTypeError(
        f"Got {text}, expected * or an origin as browsers send it: https://example.org or http://localhost:3000"
    )


# Flags without effect


def pool(text: str) -> str:
    """Check ``<device>:<bytes>``."""
    if not _POOL.fullmatch(text):
        raise argparse.ArgumentTypeError(f"option format is '<device id>:<bytes>'. Got {text}. For example: 0:67108864")
    return text


def device_limit(text: str) -> str:
    """Check ``<device>:<fraction>``."""
    device, colon, fraction = text.partition(":")
    try:
        fits = bool(colon) and device.isdecimal() and 0 <= float(fraction) <= 1
    except ValueError:
        fits = False
    if not fits:
        raise argparse.ArgumentTypeError(f"option format is '<device id>:<fraction>'. Got {text}. For example: 0:0.8")
    return text


_SWITCHES = ("counter_latencies", "summary_latencies", "histogram_latencies")
_QUANTILES = "summary_quantiles"
_MOST_QUANTILES = 20


class MetricsSetting(NamedTuple):
    """One setting of ``--metrics-config``."""

    key: str
    value: bool | tuple[float, ...] | None = None  # None for a key without meaning
    warning: str = ""  # a sentence about what has no effect


def metrics_setting(text: str) -> MetricsSetting:
    """Read ``<key>=<value>``."""
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise argparse.ArgumentTypeError(
            f"--metrics-config option format is '<setting>=<value>'. Got {text}. For example: summary_latencies=true"
        )
    if key in _SWITCHES:
        return MetricsSetting(key, boolean(value))
    if key == _QUANTILES:
        return _quantiles(value)
    known = ", ".join((*_SWITCHES, _QUANTILES))
    return MetricsSetting(key, warning=f"--metrics-config={key} has no effect: the settings are {known}")


def _quantiles(text: str) -> MetricsSetting:
    """The quantiles in ``<quantile>:<error>[,<quantile>:<error>]...``; errors have no effect."""
    found, mistyped = [], []
    for pair in text.strip('"').split(","):
        quantile, colon, error = pair.partition(":")
        if not colon or not _is_share(quantile):
            raise argparse.ArgumentTypeError(
                f"summary_quantiles are pairs '<quantile>:<error>' of numbers from 0 to 1. Got {pair}. For example: "
                "0.5:0.05,0.99:0.001"
            )
        found.append(float(quantile))
        if not _is_share(error):
            mistyped.append(error)
    if len(found) > _MOST_QUANTILES:
        raise argparse.ArgumentTypeError(f"summary_quantiles are at most {_MOST_QUANTILES}. Got {len(found)}")
    warning = ""
    if mistyped:
        text = "has errors that are no numbers from 0 to 1"
        warning = f"--metrics-config={_QUANTILES} {text}: {', '.join(mistyped)}. They have no effect"
    return MetricsSetting(_QUANTILES, tuple(sorted(set(found))), warning)


def _is_share(text: str) -> bool:
    try:
        number = float(text)
    except ValueError:
        return False
    return math.isfinite(number) and 0 <= number <= 1


def metrics_choices(given: Iterable[MetricsSetting]) -> Mapping[str, bool | tuple[float, ...]]:
    """The chosen fields of :class:`pybackend.settings.MetricsSettings`; the last value of a key counts."""
    return {each.key: each.value for each in given if each.value is not None}


def metrics_warnings(settings: Iterable[MetricsSetting]) -> Sequence[str]:
    """A sentence for each setting of ``--metrics-config`` of which something has no effect."""
    return [each.warning for each in settings if each.warning]


_FORMAT = "--host-policy option format is '<policy name>,<setting>=<value>'."

_NODE = Path("/sys/devices/system/node")

HostPolicy = tuple[str, str, frozenset[int]]
"""Policy name, setting, and the resulting cores."""


def host_policy(text: str) -> HostPolicy:
    """Read ``<name>,cpu-cores=<first>-<last>`` or ``<name>,numa-node=<number>``."""
    name, comma, rest = text.partition(",")
    setting, equals, value = rest.partition("=")
    if not name or not comma or not setting or not equals or not value:
        raise argparse.ArgumentTypeError(f"{_FORMAT} Got {text}. For example: cpu,cpu-cores=0-3")
    usable = os.sched_getaffinity(0)
    if setting == "cpu-cores":
        cores = wanted = _cores(value, text)
    elif setting == "numa-node":
        wanted = _cores_of_node(value, text)
        cores = wanted & usable  # a container may own only part of a node
    else:
        raise argparse.ArgumentTypeError(f"Unsupported host policy setting '{setting}'. Write cpu-cores or numa-node")
    if not cores or not cores <= usable:
        raise argparse.ArgumentTypeError(
            f"{text}: this server may use {len(usable)} cores, {_ranges(usable)}, but not {_ranges(wanted - usable)}"
        )
    return name, setting, cores


def _cores(value: str, text: str) -> frozenset[int]:
    """Parse ``0-3``, ``5``, or a comma-separated list of these."""
    cores: set[int] = set()
    for piece in value.split(","):
        first, _, last = piece.partition("-")
        last = last if "-" in piece else first
        if not all(bound.isascii() and bound.isdigit() and len(bound) < 7 for bound in (first, last)) or (
            int(last) < int(first)
        ):
            raise argparse.ArgumentTypeError(f"'{value}' is not a range of cores such as 0-3. Got {text}")
        cores.update(range(int(first), int(last) + 1))
    return frozenset(cores)


def _cores_of_node(value: str, text: str) -> frozenset[int]:
    path = _NODE / f"node{value}" / "cpulist"
    try:
        listed = path.read_text().strip() if value.isdecimal() else ""
    except OSError:
        listed = ""
    if not listed:
        raise argparse.ArgumentTypeError(f"this machine has no NUMA node '{value}' with cores. Got {text}")
    return _cores(listed, text)


def _ranges(cores: Iterable[int]) -> str:
    """``0-3,8``."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def host_policies(given: Iterable[HostPolicy]) -> Mapping[str, frozenset[int]]:
    """The cores of each policy. If both settings are given, ``cpu-cores`` wins because it is more precise."""
    return {name: cores for name, _, cores in sorted(given, key=lambda policy: policy[1] == "cpu-cores")}
