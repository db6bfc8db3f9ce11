"""``--backend-config``: settings of backends on the command line.

Every backend has an environment and a default batch size. Those of Triton's Python backend are checked so that mistakes
show; they have no effect: here memory grows on demand, without named regions, message queues or a thread pool that
could be too small.
"""

import argparse
from collections.abc import Mapping, Sequence

from pybackend.modelconfig.backends import ENVIRONMENT
from pybackend.spelling import closest

_BATCH_SIZE = "default-max-batch-size"

_NUMBERS: Mapping[str, tuple[int, str] | None] = {
    # The bound in the reference's text differs from the bound that the reference applies: ours says which one holds.
    "shm-default-byte-size": (1024 * 1024, "can't be smaller than 4 MiBs. The bound that holds is 1 MiB."),
    "shm-growth-byte-size": (1, "can't be smaller than or equal to zero."),
    "shm_message_queue_size": None,
    "thread-pool-size": (1, "can't be less than 1."),
    "stub-timeout-seconds": (1, "can't be smaller than or equal to zero."),
    _BATCH_SIZE: (0, "can't be negative."),
}
"""Numeric settings: the minimum, if any, and the error text below it. All other settings are text."""

_KNOWN = (*_NUMBERS, "shm-region-prefix-name", "backend-directory")

_OF_EVERY_BACKEND = (ENVIRONMENT, _BATCH_SIZE)
"""Settings that have an effect, for any backend but ``python``, whose models choose for themselves."""

_BACKENDS = ("", "python")
"""Backends whose settings are checked. Models of Python-based backends follow the settings of ``python`` too."""


def backend_setting(text: str) -> str:
    """Check ``<backend>,<setting>=<value>``, or ``<setting>=<value>`` for all backends, and return it."""
    subject, _, value = text.partition("=")
    backend, comma, name = subject.rpartition(",")
    if comma and not backend:
        raise argparse.ArgumentTypeError(
            "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
            f"<setting>=<value>. Got {text}"
        )
    if not name or not value:
        raise argparse.ArgumentTypeError(
            f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}"
        )
    if (backend in _BACKENDS or name == _BATCH_SIZE) and name in _NUMBERS:
        _check_number(name, value)
    if name == ENVIRONMENT and backend in _BACKENDS:
        raise argparse.ArgumentTypeError(
            f"an environment belongs to one backend, as in onnxruntime,{ENVIRONMENT}=PATH. Got {text}"
        )
    return text


def backend_settings(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings by backend, ``""`` for all backends; of two that contradict each other, the later one.

    ``texts``: checked by :func:`backend_setting`.
    """
    settings: dict[str, dict[str, str]] = {}
    for text in texts:
        subject, _, value = text.partition("=")
        backend, _, name = subject.rpartition(",")
        if name in _OF_EVERY_BACKEND:
            settings.setdefault(backend, {})[name] = value
    return settings


def backend_warnings(texts: Sequence[str]) -> tuple[str, ...]:
    """One sentence for each setting that no backend has. ``texts``: checked by :func:`backend_setting`."""
    found = []
    for text in texts:
        backend, _, name = text.partition("=")[0].rpartition(",")
        if backend in _BACKENDS and name not in _KNOWN:
            near = closest(name, _KNOWN)
            hint = f"did you mean {near}?" if near else f"known settings are {', '.join(_KNOWN)}"
            found.append(f"--backend-config={text}: there is no setting '{name}', so it is ignored: {hint}")
        elif backend not in _BACKENDS and closest(backend, ["python"]):
            found.append(f"--backend-config={text}: the setting is for a backend '{backend}': did you mean python?")
        elif backend not in _BACKENDS and name not in _OF_EVERY_BACKEND and closest(name, _OF_EVERY_BACKEND):
            near = closest(name, _OF_EVERY_BACKEND)
            found.append(
                f"--backend-config={text}: there is no setting '{name}', so it is ignored: did you mean {near}?"
            )
    return tuple(found)


def _check_number(name: str, value: str) -> None:
    try:
        number = int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name} must be a whole number. Got {value}") from None
    bound = _NUMBERS[name]
    if bound is not None and number < bound[0]:
        raise argparse.ArgumentTypeError(f"{name} {bound[1]} Got {value}, expected {bound[0]} or more")
