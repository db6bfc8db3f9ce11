"""Typed parameters of a backend, from ``parameters`` in config.pbtxt, where every value is text."""

import math
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_sdk.spelling import closest
from pybackend_wire.model_options import is_option

_Number = TypeVar("_Number", int, float)

_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
_MOST_CHARACTERS = 18


class Ignored(NamedTuple):
    """A parameter that existing configurations have, and that has no effect here; a warning says so.

    Attributes:
        why: a clause, such as ``it concerns GPUs only``.
    """

    why: str


class _Kind(NamedTuple):
    """How to read a value: ``parse`` raises ValueError for one that is not ``expected``."""

    expected: str
    parse: Callable[[str], Any]


Parameter = Union[_Kind, Ignored]


def boolean() -> Parameter:
    """``true`` or ``false``; also 1 and 0, yes and no, on and off, in any case."""
    return _Kind("true or false", _boolean)


def whole_number(at_least: Optional[int] = None, at_most: Optional[int] = None) -> Parameter:
    """A whole number within bounds, which are included."""

    def parse(value: str) -> int:
        if len(value) > _MOST_CHARACTERS:
            raise ValueError(value)
        return _bounded(int(value), at_least, at_most)

    return _Kind("a whole number" + _range(at_least, at_most), parse)


def number(at_least: Optional[float] = None, at_most: Optional[float] = None) -> Parameter:
    """A finite number within bounds, which are included."""
    return _Kind("a number" + _range(at_least, at_most), lambda value: _bounded(float(value), at_least, at_most))


def choice(*words: str) -> Parameter:
    """One of some words, in any case; the value is the word as given here."""
    by_lower = {word.lower(): word for word in words}

    def parse(value: str) -> str:
        if value.lower() not in by_lower:
            raise ValueError(value)
        return by_lower[value.lower()]

    return _Kind("one of " + ", ".join(words), parse)


def text() -> Parameter:
    """Any text."""
    return _Kind("text", lambda value: value)


def read_parameters(
    config: Mapping[str, Any], known: Mapping[str, Parameter], prefixes: Sequence[str] = ()
) -> Dict[str, Any]:
    """The values of a model's parameters, by name; those that the configuration leaves out are missing.

    Parameters that the server itself reads, such as ``EXECUTION_ENV_PATH``, are left to it.

    Args:
        config: the model's configuration.
        known: the backend's parameters.
        prefixes: of names that the framework checks itself; their values stay text.

    Raises:
        TritonModelException: a parameter does not exist, or its value has another type.
    """
    values: Dict[str, Any] = {}
    for name, given in config.get("parameters", {}).items():
        value = given["string_value"]
        if is_option(name):
            continue
        if any(name.startswith(prefix) for prefix in prefixes):
            values[name] = value
            continue
        kind = known.get(name)
        if kind is None:
            raise TritonModelException(_unknown(config, name, known, prefixes))
        if isinstance(kind, Ignored):
            Logger.log_warn(f"model '{config['name']}': parameters {name} has no effect: {kind.why}")
            continue
        try:
            values[name] = kind.parse(value.strip())
        except ValueError:
            raise TritonModelException(
                f"model '{config['name']}': parameters {name} must be {kind.expected}, it is '{value}'"
            ) from None
    return values


def _unknown(config: Mapping[str, Any], name: str, known: Mapping[str, Parameter], prefixes: Sequence[str]) -> str:
    near = closest(name, known)
    listed = ", ".join([*known, *(f"{prefix}*" for prefix in prefixes)])
    advice = f"did you mean {near}?" if near else f"it has {listed}" if listed else "it has none"
    return f"model '{config['name']}': backend '{config.get('backend', '')}' has no parameter '{name}': {advice}"


def _boolean(value: str) -> bool:
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ValueError(value)


def _bounded(value: _Number, at_least: Optional[float], at_most: Optional[float]) -> _Number:
    is_low = at_least is not None and value < at_least
    if is_low or (at_most is not None and value > at_most) or not math.isfinite(value):
        raise ValueError(value)
    return value


def _range(at_least: Optional[float], at_most: Optional[float]) -> str:
    if at_least is not None and at_most is not None:
        return f" from {at_least} to {at_most}"
    if at_least is not None:
        return f" of at least {at_least}"
    return "" if at_most is None else f" of at most {at_most}"
