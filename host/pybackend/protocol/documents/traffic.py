"""The documents of ``/v2/repository/models/<name>/traffic``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pybackend.errors import InferenceError, invalid
from pybackend.modelconfig.traffic import (
    SHADOW_FORM,
    WEIGHTS_FORM,
    Shadow,
    TrafficRules,
    shadow_of,
    weights_of,
)


class _Shadow(msgspec.Struct, forbid_unknown_fields=True):
    version: int | str
    percent: float


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    weights: dict[str, int] | msgspec.UnsetType | None = msgspec.UNSET
    shadow: _Shadow | msgspec.UnsetType | None = msgspec.UNSET
    reset: bool = False


def traffic_document(name: str, rules: TrafficRules, source: str, shares: Mapping[str, float]) -> bytes:
    """The rules of a model as JSON.

    Args:
        shares: the percentage of the requests without a version that each version answers now.
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
    """The change that a body requests: ``weights``, ``shadow`` with ``sets_shadow``, or ``reset``.

    Raises:
        InferenceError: INVALID_ARG, it is malformed, or requests nothing.
    """
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
