"""``--cache-config`` and the older ``--response-cache-byte-size``: where responses are cached."""

import argparse
import os
from collections.abc import Iterable

from pybackend.errors import ServerError, SettingError
from pybackend.plugins import CACHES
from pybackend.settings import CacheSettings

_FORMAT = "--cache-config option format is '<cache name>,<setting>=<value>'."

CacheSetting = tuple[str, dict[str, str]]
"""A cache's name and settings for it."""


def cache_setting(text: str) -> CacheSetting:
    """Read ``<cache>,<setting>=<value>[,<setting>=<value>]...``."""
    name, comma, rest = text.partition(",")
    if not name or not comma:
        raise argparse.ArgumentTypeError(f"{_FORMAT} Got {text}. For example: local,size=104857600")
    if name not in CACHES:
        raise argparse.ArgumentTypeError(f"unknown cache '{name}'. Write {' or '.join(CACHES)}. Got {text}")
    settings = {}
    for piece in rest.split(","):
        key, equals, value = piece.partition("=")
        if not key or not equals or not value:
            raise argparse.ArgumentTypeError(f"{_FORMAT} Got {text}")
        settings[key] = _checked(name, key, value)
    return name, settings


def _checked(name: str, key: str, value: str) -> str:
    known = CACHES[name].load().settings
    if key not in known:
        raise argparse.ArgumentTypeError(f"the cache '{name}' has no setting '{key}'. It has {', '.join(known)}")
    bounds = known[key]
    if bounds is not None:
        least, most = bounds
        if not (value.isascii() and value.isdigit() and len(value) < 20 and least <= int(value) <= most):
            raise argparse.ArgumentTypeError(f"{name},{key} must be a whole number from {least} to {most}. Got {value}")
    return value


def cache_settings(given: Iterable[CacheSetting], byte_size: int | None) -> CacheSettings | None:
    """The combined cache settings of all flags; None for no cache.

    ``given``: values of all ``--cache-config`` flags. ``byte_size``: value of ``--response-cache-byte-size``, None if
    it was not given. Raises ServerError if the flags contradict each other, or a required setting is missing.
    """
    caches: dict[str, dict[str, str]] = {}
    for name, settings in given:
        caches.setdefault(name, {}).update(settings)
    if byte_size is not None:
        if caches:
            raise SettingError(
                "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide "
                "one or the other."
            )
        return CacheSettings("local", {"size": str(byte_size)}) if byte_size else None
    if not caches:
        return None
    if len(caches) > 1:
        raise ServerError(
            "found multiple cache configurations, but only a single cache is currently supported: "
            f"--cache-config names {' and '.join(sorted(caches))}"
        )
    ((name, settings),) = caches.items()
    kind = CACHES[name].load()
    for key, variable in kind.variables.items():
        if os.environ.get(variable):
            settings.setdefault(key, os.environ[variable])
    missing = [key for key in kind.required if key not in settings]
    if missing:
        raise ServerError(
            f"--cache-config={name} needs the setting '{missing[0]}': --cache-config={name},{missing[0]}=..."
        )
    return CacheSettings(name, settings)
