"""The configuration file of ``pybackend serve``: TOML with the names of the flags as keys."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.errors import SettingError


def read_config_file(path: Path) -> Mapping[str, Any]:
    """The keys of a configuration file, with their values as TOML has them.

    Raises ServerError if the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingError(f"the configuration file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SettingError(f"the configuration file {path} is not UTF-8 text, which TOML is.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"the configuration file {path} is not TOML: {error}.") from None


def texts_of(value: object, *, as_written: bool, repeatable: bool) -> list[str]:
    """A value as on the command line: one text for each time that the flag would be given.

    Raises ValueError if the value has the wrong type; the text tells which one is right.

    Args:
        value: as TOML has it.
        as_written: the flag takes any text; a number or a boolean is then a mistake.
        repeatable: the flag may be given several times, so the value may be a list.
    """
    if isinstance(value, list):
        if not repeatable:
            raise ValueError("expected one value, got a list")
        return [text for each in value for text in texts_of(each, as_written=as_written, repeatable=False)]
    if isinstance(value, str):
        return [value]
    if as_written:
        raise ValueError(f"expected text in quotes, got {_shown(value)}")
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, int | float):
        return [str(value)]
    raise ValueError(f"expected text, a number, true or false, got {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    return str(value).lower() if isinstance(value, bool) else str(value)
