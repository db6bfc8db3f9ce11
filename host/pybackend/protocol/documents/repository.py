"""The JSON documents of the model repository extension: the index, requests to load and unload, and the traffic of a model's versions."""

import base64
import binascii
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from pybackend.errors import ErrorCode, InferenceError, invalid
from pybackend.modelconfig.traffic import (
    SHADOW_FORM,
    WEIGHTS_FORM,
    Shadow,
    TrafficRules,
    shadow_of,
    weights_of,
)
from pybackend.protocol.json.document import as_bool, as_object, as_string, optional, parse_document

CONFIG, UNLOAD_DEPENDENTS = "config", "unload_dependents"
FILE_PREFIX = "file:"

REPOSITORY_NAMED = InferenceError(
    "'repository_name' specification is not supported: leave it out, this server searches all its repositories",
    ErrorCode.UNSUPPORTED,
)

_LONG_BYTES = 16 * 1024
_MOST_BESIDE_FILES = 2 * 1024 * 1024
"""Limit of what a load request has beside the contents of its files: the configuration, and the files' names."""

_LONGEST_ESCAPES = 1024

_MOST_QUOTES = 256 * 1024
"""Twice for each text, and for each quote in a configuration."""

_PIECE_BYTES = 1024 * 1024
"""Base64 that is decoded at a time."""

_encode = msgspec.json.Encoder().encode


class IndexRow(Protocol):
    """A row of the index.

    The empty text stands for what a row does not have: a version, a reason (it is available), a namespace, a state
    (it was never loaded).
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def namespace(self) -> str: ...


def index_document(rows: Iterable[IndexRow]) -> bytes:
    """The JSON document for the repository index."""
    return _encode([_index_member(row) for row in rows])


def _index_member(row: IndexRow) -> dict[str, str]:
    member = {"name": row.name}
    if row.namespace:
        member["namespace"] = row.namespace
    if row.state:
        member |= {"version": row.version, "state": row.state}
    if row.reason:
        member["reason"] = row.reason
    return member


def parse_index_request(body: bytes) -> bool:
    """True if the index is to have ready versions only."""
    ready = optional(_document(body), "ready", False)
    if type(ready) is not bool:
        raise invalid("Invalid value for 'ready': expected a boolean, true or false")
    return ready


def parse_load_request(body: bytes) -> tuple[str | None, dict[str, bytes]]:
    """The configuration and the files in a load request: None and empty if there are none. Blocking for large files.

    Files are decoded in pieces: no call of a library keeps other threads waiting for long.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    text, contents = _without_contents(body)
    for name, value in _parameters(text).items():
        given = as_string(value, name)
        content = contents.get(given)
        if name == CONFIG:
            if content is not None and len(content) > _MOST_BESIDE_FILES:
                raise _too_much_error()
            config = given if content is None else str(parse_document(b'"%b"' % bytes(content)))
        elif name.startswith(FILE_PREFIX):
            files[name] = _decoded(name, given.encode("utf-8", "replace") if content is None else content)
        else:
            raise InferenceError(f"unexpected error on creating Triton parameter: {unknown_parameter(name)}")
    return config, files


def _without_contents(body: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """The document with a name in place of each long text that has no quotes within, and these texts by name."""
    contents: dict[str, memoryview] = {}
    if len(body) <= _LONG_BYTES:
        return body, contents
    token, view, rest = secrets.token_hex(), memoryview(body), bytearray()
    copied = quotes = 0
    begin, is_text, is_start = 0, False, False
    while (end := body.find(b'"', begin)) >= 0:
        quotes += 1
        ends_or_begins = not is_text or not _is_escaped(body, end)
        if is_start and ends_or_begins and end - begin > _LONG_BYTES:
            name = f"{token}-{len(contents)}"
            contents[name] = view[begin:end]
            rest += view[copied:begin]
            rest += name.encode()
            copied = end
        is_text ^= ends_or_begins
        begin, is_start = end + 1, is_text and ends_or_begins
        _check_rest(len(rest) + begin - copied, quotes)
    rest += view[copied:]
    _check_rest(len(rest), quotes)
    return bytes(rest), contents


def _is_escaped(body: bytes, quote: int) -> bool:
    before = body[max(0, quote - _LONGEST_ESCAPES) : quote]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _check_rest(nbytes: int, quotes: int) -> None:
    if nbytes > _MOST_BESIDE_FILES or quotes > _MOST_QUOTES:
        raise _too_much_error()


def _too_much_error() -> InferenceError:
    return invalid(f"the request has more than {_MOST_BESIDE_FILES} bytes beside the contents of its files")


def unknown_parameter(name: str) -> str:
    """The sentence about a parameter that a load request does not have."""
    return f"unrecognized load parameter '{name[:200]}'. Parameters are '{CONFIG}' and '{FILE_PREFIX}<path in the model's folder>'"


def parse_unload_request(body: bytes) -> bool:
    """True if the parts of an ensemble should be unloaded with it."""
    return as_bool(optional(_parameters(body), UNLOAD_DEPENDENTS, False), UNLOAD_DEPENDENTS)


def _decoded(name: str, text: bytes | memoryview) -> bytes:
    """The bytes of a file in base64, in which slashes may be escaped."""
    pieces, rest = [], b""
    try:
        for begin in range(0, len(text), _PIECE_BYTES):
            part = (rest + text[begin : begin + _PIECE_BYTES]).replace(b"\\/", b"/")
            is_last = begin + _PIECE_BYTES >= len(text)
            whole = len(part) if is_last else (len(part) - part.endswith(b"\\")) & ~3
            part, rest = part[:whole], part[whole:]
            if b"=" in part and not is_last:
                raise ValueError("it goes on after its end")
            pieces.append(base64.b64decode(part, validate=True))
    except (binascii.Error, ValueError) as error:
        raise invalid(f"the content of '{name}' is not base64: {error}") from None
    return b"".join(pieces)


def _document(body: bytes) -> dict[str, Any]:
    return as_object(parse_document(body), "the request") if body.strip() else {}


def _parameters(body: bytes) -> dict[str, Any]:
    return as_object(optional(_document(body), "parameters", {}), "parameters")


class _Shadow(msgspec.Struct, forbid_unknown_fields=True):
    version: int | str
    percent: float


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    weights: dict[str, int] | msgspec.UnsetType | None = msgspec.UNSET
    shadow: _Shadow | msgspec.UnsetType | None = msgspec.UNSET
    reset: bool = False


def traffic_document(name: str, rules: TrafficRules, source: str, shares: Mapping[str, float]) -> bytes:
    """The rules of a model as JSON.

    ``shares`` are the percentages of the requests without a version that the versions answer now.
    """
    shadow = rules.shadow
    document: dict[str, Any] = {
        "name": name,
        "weights": {str(version): weight for version, weight in rules.weights.items()},
        "shadow": None if shadow is None else {"version": str(shadow.version), "percent": shadow.percent},
        "source": source,
        "shares": {version: round(percent, 3) for version, percent in shares.items()},
    }
    return msgspec.json.encode(document)


def traffic_change_in(body: bytes) -> dict[str, Any]:
    """The change that a body requests: ``weights``, ``shadow`` with ``sets_shadow``, or ``reset``."""
    try:
        change = msgspec.json.decode(body or b"{}", type=_Change)
    except msgspec.DecodeError as error:
        raise _invalid(f"{error}") from None
    if change.reset:
        return {"reset": True}
    found: dict[str, Any] = {}
    if not isinstance(change.weights, msgspec.UnsetType):
        found["weights"] = _weights(change.weights or {})
    if not isinstance(change.shadow, msgspec.UnsetType):
        found |= {"shadow": _shadow(change.shadow), "sets_shadow": True}
    if not found:
        raise _invalid("it names none of 'weights', 'shadow' and 'reset'")
    return found


def _weights(given: Mapping[str, int]) -> Mapping[int, int]:
    try:
        return weights_of(",".join(f"{version}={weight}" for version, weight in given.items())) if given else {}
    except ValueError:
        raise _invalid(f"'weights' must be {WEIGHTS_FORM}, as an object") from None


def _shadow(given: _Shadow | None) -> Shadow | None:
    try:
        return None if given is None else shadow_of(f"{given.version}={given.percent!r}")
    except ValueError:
        raise _invalid(f"'shadow' must be {SHADOW_FORM}, as an object with 'version' and 'percent'") from None


def _invalid(reason: str) -> InferenceError:
    return invalid(
        f'the body must be JSON such as {{"weights": {{"1": 90, "2": 10}}, "shadow": {{"version": 3, "percent": 5}}}}: {reason}'
    )
