"""``pybackend serve --print-config``: the settings in effect, as a configuration file that names their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pybackend.cli.setting_sources import Given

_BARE = re.compile(r"true|false|0|-?[1-9][0-9]{0,18}")
"""Texts that TOML writes without quotes."""

_ESCAPES = {**{chr(code): f"\\u{code:04x}" for code in (*range(32), 127)}, '"': '\\"', "\\": "\\\\"}


def settings_text(settings: Iterable[Given]) -> str:
    """The settings as TOML, each with its source. Secrets are hidden; settings that are not set are comments."""
    return "".join(f"{_line(each)}\n" for each in settings)


def _line(given: Given) -> str:
    flag = given.flag
    key = flag.name.removeprefix("--")
    texts = _default_texts(flag.usual) if given.texts is None else list(given.texts)
    if not texts:
        return f"# {key} is not set"
    if flag.secret is not None:
        texts = [flag.secret.sub("(hidden)", text) for text in texts]
    shown = f"[{', '.join(map(_quoted, texts))}]" if flag.repeats else _value(texts[0], is_text=flag.is_text)
    return f"{key} = {shown}  # {given.source}"


def _default_texts(default: object) -> Sequence[str]:
    if isinstance(default, bool):
        return [str(default).lower()]
    return [str(default)] if default or default == 0 else []


def _value(text: str, *, is_text: bool) -> str:
    return text if _BARE.fullmatch(text) and not is_text else _quoted(text)


def _quoted(text: str) -> str:
    return f'"{"".join(_ESCAPES.get(letter, letter) for letter in text)}"'
